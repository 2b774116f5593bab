#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/optim/update_rule.h"
#include "trireme/ps/job_key.h"
#include "trireme/ps/job_membership.h"
#include "trireme/ps/layout.h"
#include "trireme/ps/ps_variable.h"
#include "trireme/ps/server_request.h"
#include "trireme/rpc/call_all.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/variable_host.h"

namespace trireme {

class DeleteVariablesRequest;
class LookupVariablesRequest;
class LookupVariablesResponse;

struct PsClientOptions {
  ClusterSpec spec;  // cluster whose ps tasks are the servers
  // Expected incarnations of the servers, in the order of the tasks. Empty accepts any.
  std::vector<uint64_t> incarnations = {};
  // Job that the variables belong to, for a worker that uses the variables of a client program. A
  // client program calls join() instead. Without a job, variables stay until they are deleted.
  JobKey job = {};
  // Namespace of the variables within the job.
  std::string container = "default";
  Credentials credentials = Credentials::loopback();
  std::string caller_task = {};  // name of the task that uses the client; empty for a program
  std::shared_ptr<FaultInjector> faults = nullptr;  // faults injected into calls; null for none
  RetryPolicy retry = {.attempt_time = std::chrono::seconds(30)};
  // True to pass large values through shared memory to servers on the same machine.
  bool shared_memory = true;
  // Time limit of a call. Calls get another second for every 16 MiB that they carry.
  Duration timeout = std::chrono::minutes(2);
};

// Reads and changes variables on parameter servers, on behalf of a worker or a program. An
// operation on any number of variables makes one call to each server that holds some of them. These
// calls run concurrently and are retried if they may have been lost. Thread-safe. May be destroyed
// while asynchronous operations are in flight.
class PsClient {
 public:
  template <typename T>
  using Done = absl::AnyInvocable<void(absl::StatusOr<T>)>;

  // Connects to every ps task. Blocks until all of them are up, but not beyond `deadline`. The
  // client stays bound to the incarnations that it found: a server that is restarted has lost its
  // variables, and calls to it fail with INCARNATION_CHANGED.
  static absl::StatusOr<std::unique_ptr<PsClient>> connect(PsClientOptions options, Time deadline);

  // Takes part in a job from now on; must be called before any other operation. Blocks until it is
  // decided whether earlier programs of the job are alive, but not beyond `deadline`.
  absl::Status join(const JobOptions& options, Time deadline);
  // Returns the client's part in its job; null if it has not joined one.
  const std::shared_ptr<JobMembership>& membership() const { return membership_; }

  int servers() const { return static_cast<int>(channels_.size()); }
  // Returns the incarnations of the servers, in the order of the tasks.
  std::vector<uint64_t> incarnations() const;
  // Return the connection to a server, and the scope of the client's variables.
  Channel& channel(int server) { return *channels_[server]; }
  VariableScope scope() const { return {job_.id, job_.generation, options_.container}; }
  // Returns options for calls that carry `bytes` in all.
  CallOptions call_options(uint64_t bytes, bool large_response) const;

  // A variable to be created, with the servers of its shards.
  struct PlacedVariable {
    VariableLayout layout;
    at::Tensor initial = {};  // initial contents; if undefined, `fill` is used and nothing is sent
    double fill = 0;          // initial value of every element
    // Variable of the same name that this one replaces: it is deleted first.
    std::optional<PsVariable> replaces = std::nullopt;
  };
  // Creates variables. The first client to create a variable initialises it: one that exists keeps
  // its contents. Fails with ALREADY_EXISTS if one exists with another shape or dtype. If the job
  // was resumed, all variables must exist since an earlier generation, or none; otherwise fails
  // with FAILED_PRECONDITION and creates nothing (resumed_variables.h).
  absl::StatusOr<std::vector<PsVariable>> create(const std::vector<PlacedVariable>& variables);
  // Names of shards, by server.
  using ShardNames = std::map<int, std::set<std::string>>;
  // Deletes those of the shards that this program has created: shards that create() has left behind
  // when it failed. Shards of earlier generations and of other programs are left alone. Deletes
  // nothing if other programs take part in the job, since they may use the shards.
  absl::Status remove_leftovers(const ShardNames& shards);
  // Finds variables that another client created with these layouts. Fails if one does not exist or
  // has another shape or dtype.
  absl::StatusOr<std::vector<PsVariable>> open(const std::vector<VariableLayout>& layouts);
  // Assigns an optimizer to variables. Its state is kept on the servers, next to each shard. A
  // variable that already has the same optimizer keeps its state. Fails with ALREADY_EXISTS if it
  // has another one.
  absl::Status set_optimizer(const std::vector<PsVariable>& variables,
                             const internal::UpdateRule& rule);
  // Deletes variables from the servers, for all clients. Variables that are gone are ignored.
  absl::Status remove(const std::vector<PsVariable>& variables);
  // Deletes all variables of the client's container.
  absl::Status drop_container();

  // Returns the contents of variables in the order of `pulls`. A result never has half of an update
  // of a shard, but two shards may be read at different times. Small results share one block of
  // memory.
  absl::StatusOr<std::vector<at::Tensor>> pull(std::vector<PsPull> pulls);
  void pull(std::vector<PsPull> pulls, Done<std::vector<at::Tensor>> done);

  // Contents of variables, and the versions of their shards at which they were read.
  struct Pulled {
    std::vector<at::Tensor> values;
    std::vector<ShardVersions> versions;  // one entry for each pull
  };
  // Does the same as pull(), and returns the versions too.
  absl::StatusOr<Pulled> pull_with_versions(std::vector<PsPull> pulls);

  // Pushes updates. A server applies a push once per shard, however often it is sent and whichever
  // client sends it. Fails with ABORTED if the push is already decided: its writer has ended or has
  // moved its watermark past it. The tensors must not change until the push is done.
  absl::Status push(const std::vector<PsPush>& pushes, const PushOptions& options);
  void push(const std::vector<PsPush>& pushes, const PushOptions& options,
            absl::AnyInvocable<void(absl::Status)> done);
  // Does the same as push(), and returns for each update the versions of the variable's shards
  // after it. If the push is a repetition, these are their versions now, which may be higher.
  absl::StatusOr<std::vector<ShardVersions>> push_with_versions(const std::vector<PsPush>& pushes,
                                                                const PushOptions& options);

  // Does the same as push(), and reads variables after it, in the same calls. Returns their
  // contents in the order of `pulls`; nothing if they cannot be read in these calls, because some
  // are pulled by rows, are large, or are on servers to which nothing is pushed.
  void push_then_pull(const std::vector<PsPush>& pushes, const PushOptions& options,
                      std::vector<PsPull> pulls, Done<std::optional<std::vector<at::Tensor>>> done);

  // Registers a writer with all servers, and removes it again. Servers accept pushes of a writer
  // only between the two. end_writer() does not retry, so that a lost server does not delay it.
  absl::Status begin_writer(uint64_t writer);
  absl::Status end_writer(uint64_t writer, Duration timeout = std::chrono::seconds(10));

 private:
  using Requests = std::vector<internal::ServerRequest>;

  explicit PsClient(PsClientOptions options) : options_(std::move(options)), job_(options_.job) {}

  // Addresses each request to the channel of its server.
  std::vector<TargetedCall> make_calls(Requests requests, const CallOptions& options) const;
  // Start a pull or a push and call `done` with its results. Their versions are empty unless
  // `with_versions`: reading them takes time that most callers need not spend.
  void start_pull(std::vector<PsPull> pulls, bool with_versions, Done<Pulled> done);
  void start_push(const std::vector<PsPush>& pushes, const PushOptions& options, bool with_versions,
                  Done<std::vector<ShardVersions>> done);
  // Sends the same request to every server.
  template <typename Body>
  absl::Status broadcast(const char* method, const Body& body, const CallOptions& options);

  // Returns the number of this program in its job; 0 without one.
  uint64_t member() const { return membership_ == nullptr ? 0 : membership_->member(); }
  // Sets the scope of the names in a request.
  template <typename Body>
  void set_scope(Body& body) const;
  // Looks up names at each server, and sets the rest of the requests. A name that does not exist is
  // an error unless `allow_missing`.
  absl::StatusOr<std::map<int, LookupVariablesResponse>> find_shards(
      std::map<int, LookupVariablesRequest>& bodies, bool allow_missing) const;
  // Deletes the variables with the handles at each server, and sets the rest of the requests.
  absl::Status delete_shards(std::map<int, DeleteVariablesRequest>& bodies) const;
  // Returns the error if some of the variables exist since an earlier generation and others do not.
  absl::Status check_resumed(const std::vector<PlacedVariable>& variables);

  const PsClientOptions options_;
  std::vector<std::shared_ptr<Channel>> channels_;
  JobKey job_;                                 // constant after join()
  std::shared_ptr<JobMembership> membership_;  // constant after join()
};

}  // namespace trireme
