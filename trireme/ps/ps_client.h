#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/ps/layout.h"
#include "trireme/ps/push_records.h"
#include "trireme/ps/stored_variable.h"
#include "trireme/rpc/channel.h"

namespace trireme {

struct PsClientOptions {
  ClusterSpec spec;  // its ps tasks are the servers
  // Those that are meant, in the order of the tasks; empty: whoever is there.
  std::vector<uint64_t> incarnations = {};
  std::string container = "default";
  Credentials credentials = Credentials::loopback();
  std::string caller_task = {};
  std::shared_ptr<FaultInjector> faults = nullptr;
  RetryPolicy retry = {.attempt_time = std::chrono::seconds(30)};
  // For each call; large ones get more, a second for each 16 MiB.
  Duration timeout = std::chrono::minutes(2);
};

// A variable on the servers, as a client of them knows it. A handle: copies mean the same.
class PsVariable {
 public:
  const VariableLayout& layout() const { return state_->layout; }
  const std::string& name() const { return layout().name; }

 private:
  friend class PsClient;
  struct State {
    VariableLayout layout;
    std::vector<uint64_t> handles;  // of each shard, at its server
  };
  explicit PsVariable(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
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
  // Of the servers, in the order of the tasks.
  std::vector<uint64_t> incarnations() const;

  struct NewVariable {
    VariableLayout layout;
    at::Tensor initial = {};  // undefined: every element is `fill`, and nothing is sent
    double fill = 0;
  };
  // Those that exist keep their contents: the first to come initialises.
  absl::StatusOr<std::vector<PsVariable>> create(const std::vector<NewVariable>& variables);
  // Finds variables that another program made with these layouts.
  absl::StatusOr<std::vector<PsVariable>> open(const std::vector<VariableLayout>& layouts);
  // State is made beside each shard. One that has the same optimizer keeps its state.
  absl::Status set_optimizer(const std::vector<PsVariable>& variables,
                             const internal::UpdateRule& rule);
  absl::Status remove(const std::vector<PsVariable>& variables);
  absl::Status drop_container();

  struct Pull {
    PsVariable variable;
    at::Tensor rows = {};  // ids of the rows that are wanted, in any order; undefined: all
  };
  // Each is consistent by shard: never half of an update. Small ones share memory with each other.
  absl::StatusOr<std::vector<at::Tensor>> pull(std::vector<Pull> pulls);
  void pull(std::vector<Pull> pulls, Done<std::vector<at::Tensor>> done);

  struct Push {
    PsVariable variable;
    Update::Kind kind = Update::Kind::kAdd;
    at::Tensor rows = {};  // ids; undefined: all
    at::Tensor values;     // or a sparse tensor, which brings its rows
  };
  struct PushOptions {
    PushId id;
    // All sequences of the origin below are decided: servers may forget them.
    uint64_t watermark = 0;
    std::optional<double> lr = std::nullopt;  // for gradients; none: the optimizer's own
  };
  // Applied once per shard however often it is sent, and by whomever. ABORTED if it is decided
  // already. Values must not change before the answer.
  absl::Status push(const std::vector<Push>& pushes, const PushOptions& options);
  void push(const std::vector<Push>& pushes, const PushOptions& options,
            absl::AnyInvocable<void(absl::Status)> done);
  // Without an identity: this call is done once, but another one is another change.
  absl::Status write(const std::vector<Push>& writes);

  // Pushes of an origin are taken between these two.
  absl::Status begin_origin(uint64_t origin);
  absl::Status end_origin(uint64_t origin, Duration timeout = std::chrono::seconds(10));

 private:
  using Requests = std::map<int, Message>;  // by server
  using Responses = std::map<int, Message>;

  explicit PsClient(PsClientOptions options) : options_(std::move(options)) {}

  CallOptions call_options(uint64_t bytes, bool large_response) const;
  // Calls all at once; the first error is the answer.
  void call(const char* method, Requests requests, CallOptions options, Done<Responses> done,
            std::map<int, Destination> into = {});
  absl::StatusOr<Responses> call(const char* method, Requests requests, const CallOptions& options);
  template <typename Request>
  absl::Status tell_all(const char* method, const Request& request, const CallOptions& options);
  absl::StatusOr<Requests> push_requests(const std::vector<Push>& pushes,
                                         const PushOptions& options, uint64_t& bytes) const;

  const PsClientOptions options_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace trireme
