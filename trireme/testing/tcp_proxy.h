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

// The direction in which bytes flow through a proxy.
enum class Direction { kToServer, kToClient };

// A TCP proxy in front of a server that injects the faults of a network. TCP repairs the loss of
// packets, so programs see delay, silence and broken connections; these are what it injects. Its
// methods must be called from one thread; it forwards bytes on a thread of its own.
class TcpProxy {
 public:
  // Forwards to the target, a loopback address "127.0.0.1:PORT". Listens on a free loopback port
  // unless `listen` names another address. Throws Error if it cannot listen.
  explicit TcpProxy(const std::string& target, uint64_t seed = 0,
                    const std::string& listen = "127.0.0.1:0");
  ~TcpProxy();

  // Returns "HOST:PORT", the address to which clients connect.
  const std::string& address() const { return address_; }

  // Delays each piece of bytes by a random time between `least` and `most`.
  void set_delay(Duration least, Duration most);
  // Makes each piece of bytes break its connection with this probability.
  void set_cut(double probability);
  // Partitions one direction, or heals it. While it is blocked, bytes wait; none are lost.
  void block(Direction direction, bool blocked);
  // Breaks all connections now.
  void cut_all();

  // Returns the number of connections that the proxy has broken on purpose.
  uint64_t cuts() const { return cuts_; }
  // Returns the number of connections that it has accepted.
  uint64_t connections() const { return connections_; }

 private:
  // One direction of a connection.
  struct Pipe {
    int from = -1;
    int to = -1;
    Direction direction = Direction::kToServer;
    struct Piece {
      Time due;
      std::string bytes;
    };
    std::vector<Piece> waiting;
    size_t written = 0;  // Bytes of the first waiting piece that were sent.
    bool ended = false;  // True once `from` has reached its end of file.
    bool shut = false;   // True once the end has been passed on to `to`.
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
  std::map<uint64_t, Connection> open_;  // Used by the proxy's own thread only.
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
