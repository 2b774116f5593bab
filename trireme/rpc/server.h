#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/rpc/server_options.h"
#include "trireme/rpc/service.h"

namespace trireme {
// Serves the methods of services on one port. Every method takes and returns a Message of any size;
// large ones are streamed in frames. Thread-safe.
class RpcServer {
 public:
  // Starts a server. Fails if the credentials do not permit the address, if it cannot be bound, or
  // if another process holds it.
  static absl::StatusOr<std::unique_ptr<RpcServer>> start(
      RpcServerOptions options, std::vector<std::unique_ptr<Service>> services);

  // Stops at once, cancelling the calls in flight.
  ~RpcServer();

  // Returns the address that callers use, with the actual port.
  const std::string& address() const;

  // Returns all methods by name, with the roles that may call them.
  std::map<std::string, Roles> method_table() const;

  // Rejects new calls, waits until the deadline for the calls in flight, and cancels the rest.
  // Blocks until no handler runs any more, if need be beyond the deadline. May be called again.
  void stop(Time deadline);

 private:
  class Impl;
  explicit RpcServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
