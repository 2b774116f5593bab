#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"

namespace trireme {

// Which way bytes go: from those who connect to the server, and back.
enum class Direction { kToServer, kToClient };

// A port before a server's that passes bytes on, and hurts them as a network would: TCP mends the
// loss of packets, so what reaches programs is delay, silence and broken connections. Used from one
// thread; passes bytes on a thread of its own.
class TcpProxy {
 public:
  // The target is a loopback address, "127.0.0.1:PORT"; so is where it listens unless told. Throws
  // Error.
  explicit TcpProxy(const std::string& target, uint64_t seed = 0,
                    const std::string& listen = "127.0.0.1:0");
  ~TcpProxy();

  // "HOST:PORT", where clients connect.
  const std::string& address() const { return address_; }

  // Each piece of bytes arrives that much later, up to the second.
  void set_delay(Duration least, Duration most);
  // Each piece of bytes that passes breaks its connection with this probability.
  void set_cut(double probability);
  // A partition: nothing goes that way until it is healed; nothing is lost either. Both: both.
  void block(Direction direction, bool blocked);
  // Breaks all connections now.
  void cut_all();

  uint64_t cuts() const { return cuts_; }
  uint64_t connections() const { return connections_; }

 private:
  // One way of a connection.
  struct Pipe {
    int from = -1;
    int to = -1;
    Direction direction = Direction::kToServer;
    struct Piece {
      Time due;
      std::string bytes;
    };
    std::vector<Piece> waiting;
    size_t written = 0;  // of the first
    bool ended = false;  // nothing comes any more
    bool shut = false;
  };
  struct Connection {
    Pipe up, down;
  };

  void run();
  void accept_one();
  bool pump(Pipe& pipe, bool readable, Time now);
  void close_connection(uint64_t id);
  void wake();

  std::string address_;
  std::string target_;
  int listener_ = -1;
  int wake_read_ = -1, wake_write_ = -1;
  std::map<uint64_t, Connection> open_;  // of the thread
  uint64_t last_id_ = 0;

  Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  Duration least_delay_ ABSL_GUARDED_BY(mutex_) = {};
  Duration most_delay_ ABSL_GUARDED_BY(mutex_) = {};
  double cut_ ABSL_GUARDED_BY(mutex_) = 0;
  bool blocked_[2] ABSL_GUARDED_BY(mutex_) = {false, false};
  bool cut_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> cuts_ = 0;
  std::atomic<uint64_t> connections_ = 0;
  std::thread thread_;
};

}  // namespace trireme
