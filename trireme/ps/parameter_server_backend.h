#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/ps/backend_pause.h"
#include "trireme/ps/layout.h"
#include "trireme/ps/ps_client.h"
#include "trireme/ps/ps_step.h"

namespace trireme::internal {

// Keeps a program's variables on parameter servers and runs captured steps on them. Variables are
// not created on the servers one by one: when one of them is first used, all that were made by then
// are created together, so that they can be balanced over the servers. Thread-safe.
class ParameterServerBackend final : public VariableBackend {
 public:
  // Registers a writer with the servers for the pushes of this program. Throws Error if that fails.
  // The client must have joined a job. `largest_whole_gradient` is a limit of make_ps_step().
  ParameterServerBackend(std::unique_ptr<PsClient> client, ShardPlacer placer,
                         uint64_t largest_whole_gradient);
  // Leaves the job. The servers keep its variables if an exception is in flight, or if the program
  // resumed the job and could not use the variables.
  ~ParameterServerBackend() override;

  void check_device(const VariableRecord& variable) const override;
  void adopt(const std::shared_ptr<VariableRecord>& variable) override;
  std::vector<std::string> devices(const VariableRecord& variable) override;
  at::Tensor read(const VariableRecord& variable) override;
  void change(const VariableRecord& variable, Change change, const at::Tensor& value) override;
  void set_optimizer(const VariableRecords& variables, const std::string& rule,
                     const std::map<std::string, double>& options) override;
  void push_gradients(const VariableRecords& variables, const std::vector<at::Tensor>& gradients,
                      double lr) override;
  std::vector<at::Tensor> run(const FunctionStep& step, const StepOptions& options) override;

  // Fetches the contents of several variables in one pull per server.
  std::vector<at::Tensor> read_all(const VariableRecords& variables);
  // Assigns values of the variables' own shapes and dtypes, with one call per server.
  void assign_all(const VariableRecords& variables, const std::vector<at::Tensor>& values);

  PsClient& client() { return *client_; }
  // Asks all servers whether the program still takes part in its job. Returns ABORTED if a newer
  // program has taken over.
  absl::Status confirm_membership();
  // Returns the program's part in its job; never null.
  const std::shared_ptr<JobMembership>& membership() const { return client_->membership(); }
  // Throws Error if the step cannot run with variables on the servers (make_ps_step).
  void check_step(const FunctionStep& step) const;
  // Returns the variable on the servers, and creates it there if necessary.
  PsVariable ps_variable(const VariableRecord& variable);

  // Adds an object that changes variables of this backend, to be paused with it.
  void add_pausable(std::weak_ptr<Pausable> pausable);
  // Blocks until no update of the program is under way: steps of the program itself have ended, new
  // ones wait, and all pausables are paused (Pausable::pause). The servers have confirmed that they
  // apply no update of the program. Returns an error at `limit`, which names the task that it waits
  // for, and everything goes on.
  absl::StatusOr<std::unique_ptr<BackendPause>> pause(Time drain_until, Time limit);

 private:
  // Throws the error of an operation. If a newer program has taken over the job, throws that.
  void check(const absl::Status& status) const { throw_if_error(membership()->explain(status)); }
  template <typename T>
  T checked(absl::StatusOr<T> result) const {
    check(result.status());
    return *std::move(result);
  }

  // Creates all adopted variables that are not on the servers yet.
  void create_pending_variables();
  // Pushes updates as one round of a sequence. Repeats the push under the same identity while
  // servers reject it because the program's lease has run out there.
  absl::Status push(const std::vector<PsPush>& pushes, const PushId& id, std::optional<double> lr);
  // Pushes updates as a sequence of their own.
  absl::Status push_once(const std::vector<PsPush>& pushes,
                         std::optional<double> lr = std::nullopt);
  // Allocates a sequence number for the pushes of one step. It is in flight until end_sequence().
  uint64_t begin_sequence();
  void end_sequence(uint64_t sequence);
  // Returns the smallest sequence in flight: all below it are decided.
  uint64_t watermark();
  // Returns the program of a step, from the cache if it was derived before.
  std::shared_ptr<const PsStep> program_of(const FunctionStep& step,
                                           const std::vector<bool>& on_servers);

  const std::unique_ptr<PsClient> client_;
  const uint64_t writer_;  // identifies this program's pushes
  const uint64_t largest_whole_gradient_;

  // Passed by everything that changes variables; closed during a pause.
  const std::shared_ptr<StepGate> gate_ = std::make_shared<StepGate>();

  Mutex creation_mutex_;  // held while variables are created on the servers
  ShardPlacer placer_ ABSL_GUARDED_BY(creation_mutex_);
  std::vector<std::weak_ptr<VariableRecord>> pending_ ABSL_GUARDED_BY(creation_mutex_);
  // Variables that were created, by name. A name is made again only after its variable is gone from
  // the program, and then the new variable replaces the old one.
  std::map<std::string, PsVariable> created_ ABSL_GUARDED_BY(creation_mutex_);
  // Shards that failed attempts to create variables may have left on the servers.
  PsClient::ShardNames leftovers_ ABSL_GUARDED_BY(creation_mutex_);

  Mutex mutex_;
  struct CachedProgram {
    std::weak_ptr<const Plan> plan;
    std::shared_ptr<const PsStep> program;
  };
  std::unordered_map<const Plan*, CachedProgram> programs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Pausable>> pausables_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  std::set<uint64_t> in_flight_ ABSL_GUARDED_BY(mutex_);  // sequences that are not decided yet
};

}  // namespace trireme::internal
