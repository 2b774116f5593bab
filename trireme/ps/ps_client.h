#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/optim/update_rule.h"
#include "trireme/ps/layout.h"
#include "trireme/ps/ps_variable.h"
#include "trireme/ps/server_request.h"
#include "trireme/rpc/call_all.h"
#include "trireme/rpc/channel.h"

namespace trireme {

struct PsClientOptions {
  ClusterSpec spec;  // its ps tasks are the servers
  // Incarnations of the servers that are meant, in the order of the tasks; empty: any.
  std::vector<uint64_t> incarnations = {};
  std::string container = "default";
  Credentials credentials = Credentials::loopback();
  std::string caller_task = {};
  std::shared_ptr<FaultInjector> faults = nullptr;
  RetryPolicy retry = {.attempt_time = std::chrono::seconds(30)};
  // For each call; large ones get more, a second for each 16 MiB.
  Duration timeout = std::chrono::minutes(2);
};

// How a worker or a program uses variables on parameter servers. Whatever the number of variables,
// a call of it makes one call to each server that holds some of them, to all at once, and repeats
// what may have been lost. Thread-safe; calls under way hold what they need.
class PsClient {
 public:
  template <typename T>
  using Done = absl::AnyInvocable<void(absl::StatusOr<T>)>;

  // Says hello to every ps task, waiting for those that are not up yet until the deadline. From
  // then on calls are meant for these incarnations: a server that starts again has lost its
  // variables, and calls to it fail with INCARNATION_CHANGED.
  static absl::StatusOr<std::unique_ptr<PsClient>> connect(PsClientOptions options, Time deadline);

  int servers() const { return static_cast<int>(channels_.size()); }
  // Incarnations of the servers, in the order of the tasks.
  std::vector<uint64_t> incarnations() const;

  // A variable that is to be made, with its place on the servers.
  struct PlacedVariable {
    VariableLayout layout;
    at::Tensor initial = {};  // undefined: every element is `fill`, and nothing is sent
    double fill = 0;
  };
  // Variables that exist keep their contents: the first client to create one initialises it.
  absl::StatusOr<std::vector<PsVariable>> create(const std::vector<PlacedVariable>& variables);
  // Finds variables that another program made with these layouts.
  absl::StatusOr<std::vector<PsVariable>> open(const std::vector<VariableLayout>& layouts);
  // State is made beside each shard. One that has the same optimizer keeps its state.
  absl::Status set_optimizer(const std::vector<PsVariable>& variables,
                             const internal::UpdateRule& rule);
  absl::Status remove(const std::vector<PsVariable>& variables);
  absl::Status drop_container();

  // Each is consistent by shard: never half of an update. Small ones share memory with each other.
  absl::StatusOr<std::vector<at::Tensor>> pull(std::vector<PsPull> pulls);
  void pull(std::vector<PsPull> pulls, Done<std::vector<at::Tensor>> done);

  // Applied once per shard however often it is sent, and by whomever. ABORTED if it is decided
  // already. Values must not change before the answer.
  absl::Status push(const std::vector<PsPush>& pushes, const PushOptions& options);
  void push(const std::vector<PsPush>& pushes, const PushOptions& options,
            absl::AnyInvocable<void(absl::Status)> done);
  // Without an identity: this call is done once, but another one is another change.
  absl::Status write(const std::vector<PsPush>& writes);

  // Pushes of a writer are taken between these two.
  absl::Status begin_writer(uint64_t writer);
  absl::Status end_writer(uint64_t writer, Duration timeout = std::chrono::seconds(10));

 private:
  using Requests = std::vector<internal::ServerRequest>;

  explicit PsClient(PsClientOptions options) : options_(std::move(options)) {}

  CallOptions call_options(uint64_t bytes, bool large_response) const;
  std::vector<TargetedCall> targeted(Requests requests, const CallOptions& options) const;
  // Sends the same request to every server.
  template <typename Body>
  absl::Status broadcast(const char* method, const Body& body, const CallOptions& options);

  const PsClientOptions options_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace trireme
