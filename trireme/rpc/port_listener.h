#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/rpc/lane.h"
#include "trireme/rpc/socket.h"

namespace trireme::internal {

// Options of a PortListener.
struct PortListenerOptions {
  std::string address;  // host:port to listen on; port 0 for any free port
  // Takes over a connection that is not a lane. Called on the listener's thread; must not block.
  std::function<void(Socket)> on_connection;
  std::shared_ptr<LaneTable> lanes;              // null to refuse lanes
  Duration lane_time = std::chrono::seconds(5);  // time in which the token of a lane must come
  // Time after which another connection is lost if bytes that were sent are not acknowledged.
  Duration silence_limit = std::chrono::seconds(20);
};

// Accepts the connections to the port of a server, and gives those of lanes to its LaneTable and
// all others to gRPC. The first byte tells them apart. One thread does it. Thread-safe.
class PortListener {
 public:
  // Binds the address, and listens on it. Fails if another process listens there.
  static absl::StatusOr<std::unique_ptr<PortListener>> bind(PortListenerOptions options);
  // Closes the port. Connections that were accepted but not taken over are closed too.
  ~PortListener();

  // Accepts connections from now on. Those that were made since bind() are not lost.
  void start();
  int port() const { return port_; }

 private:
  // A connection whose first bytes have not come.
  struct Arrival {
    Socket socket;
    Time limit;         // time at which it is closed, or taken for one that is not a lane
    std::string bytes;  // the preface of a lane, as far as it has come
  };
  enum class Verdict { kUnknown, kLane, kOther, kBroken };

  explicit PortListener(PortListenerOptions options);

  absl::Status listen_on_host(const std::string& host);
  absl::Status listen_on(const addrinfo& address);
  void run();
  // Accepts the connections that wait. Returns false if the process has no descriptors left.
  bool accept_from(const Socket& listener);
  // Passes on the connections of which it is known what they are. `waited` has the results of
  // poll() for the arrivals that it waited for.
  void sort_arrivals(const pollfd* waited);
  void pass_on(Socket socket);
  // `late` is true if the limit of the arrival has passed.
  Verdict look_at(Arrival& arrival, bool late) const;

  const PortListenerOptions options_;
  int port_ = 0;
  std::vector<Socket> listeners_;
  FileDescriptor wake_;  // becomes readable when the thread must end
  std::list<Arrival> arrivals_;
  size_t waited_arrivals_ = 0;  // number of arrivals for which poll() waits
  std::thread thread_;
};

}  // namespace trireme::internal
