#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/ps/ps_client.h"
#include "trireme/ps/variable_service.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/server_service.h"
#include "trireme/runtime/task_server.h"

namespace trireme {

// Parameter servers that run in the process of a test.
class TestServers {
 public:
  explicit TestServers(int count, VariableStoreOptions options = {},
                       std::string checkpoint_root = "/")
      : options_(options), checkpoint_root_(std::move(checkpoint_root)) {
    std::vector<std::string> addresses;
    for (int i = 0; i < count; ++i) {
      ports_.push_back(value_or_throw(PortReservation::make()));
      addresses.push_back(ports_.back().address());
    }
    spec_ = ClusterSpec(std::map<std::string, TaskAddresses>{{"ps", addresses}});
    servers_.resize(count);
    for (int i = 0; i < count; ++i) start(i);
  }

  // Starts a server, or restarts it as a new incarnation at the same address.
  void start(int index) { start(index, options_); }
  // Does the same with options of its own.
  void start(int index, VariableStoreOptions options) {
    servers_[index].reset();
    servers_[index] = value_or_throw(
        TaskServer::start({.spec = spec_,
                           .task = {"ps", index},
                           .checkpoint_root = checkpoint_root_,
                           .services = {make_server_service, [options](TaskContext& context) {
                                          return make_variable_service(context, options);
                                        }}}));
  }

  const ClusterSpec& spec() const { return spec_; }

  std::unique_ptr<PsClient> client(std::shared_ptr<FaultInjector> faults = nullptr,
                                   RetryPolicy retry = {}, bool shared_memory = true) const {
    return value_or_throw(PsClient::connect({.spec = spec_,
                                             .faults = std::move(faults),
                                             .retry = retry,
                                             .shared_memory = shared_memory},
                                            after(std::chrono::seconds(20))));
  }
  // Returns a client that sends all values over connections.
  std::unique_ptr<PsClient> client_without_shared_memory() const {
    return client(nullptr, {}, /*shared_memory=*/false);
  }

  const TaskContext& context(int index) const { return servers_[index]->context(); }

  // Returns the number of calls of a method, such as "Pull", to all servers together.
  uint64_t calls(const std::string& method) const { return counted(method, "calls"); }
  // Returns the sum of a counter of a method over all servers.
  uint64_t counted(const std::string& method, const std::string& counter) const {
    uint64_t sum = 0;
    for (const auto& server : servers_) {
      sum += server->context().metrics.counters().at("rpc_server/trireme.Variables/" + method +
                                                     "/" + counter);
    }
    return sum;
  }

 private:
  const VariableStoreOptions options_;
  const std::string checkpoint_root_;
  std::vector<PortReservation> ports_;
  ClusterSpec spec_;
  std::vector<std::unique_ptr<TaskServer>> servers_;
};

}  // namespace trireme
