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
// A port that serves methods. Every method takes and returns a Message of any size; the frames of
// large ones are streamed. Thread-safe.
class RpcServer {
 public:
  // Fails when the address may not be bound or is taken.
  static absl::StatusOr<std::unique_ptr<RpcServer>> start(
      RpcServerOptions options, std::vector<std::unique_ptr<Service>> services);

  // Stops at once: calls under way are cancelled.
  ~RpcServer();

  // The address that callers use, with the port that was taken.
  const std::string& address() const;

  // Every method that it serves, by name, and who may call it.
  std::map<std::string, Roles> method_table() const;

  // Takes no new calls, lets those under way end until the deadline, cancels the rest. Returns when
  // nothing runs any more. May be called again.
  void stop(Time deadline);

 private:
  class Impl;
  explicit RpcServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
