#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/base/average_duration.h"
#include "trireme/base/clock.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/exec/part_run.h"
#include "trireme/observe/metrics.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/crossings.h"
#include "trireme/runtime/part_plan.h"
#include "trireme/runtime/variable_host.h"

namespace trireme::internal {

// Identifies a step on all tasks that have a part of it.
struct StepKey {
  uint64_t registration = 0;
  uint64_t number = 0;  // counts up within the registration
};

// A part of a graph that a master has registered with this task.
struct RegisteredPart {
  uint64_t session = 0;
  uint64_t registration = 0;
  std::string task;     // name of this task, for errors
  VariableScope scope;  // names of the session's variables
  // Returns an error once the scope's generation is not the current one of its job any more
  // (PartRunOptions::check_write). Null for variables of no job.
  std::function<absl::Status()> check_write = nullptr;
  std::unique_ptr<PartPlan> plan;
  // Target of one send. Without a channel, the value travels to the master with the answer.
  struct Destination {
    std::shared_ptr<Channel> channel;
    uint64_t incarnation = 0;
  };
  std::map<uint32_t, Destination> destinations;  // one for each send of the graph, by its edge
  // Time that a run takes, without its waits. Short parts run without a thread of their own.
  AverageDuration usual_time{std::chrono::milliseconds(1)};
};

struct PartInputs {
  std::vector<at::Tensor> tensors;  // inputs of the part, in its order
  uint64_t seed = 0;                // seed and number of the step: the source of random numbers
  uint64_t step = 0;
  Time deadline;         // end of the whole step
  std::stop_token stop;  // stops when the caller no longer needs the step
};

struct PartResult {
  std::vector<at::Tensor> outputs;
  std::vector<CrossingValue> crossings;  // values for the master's own part
};
using OnPartResult = absl::AnyInvocable<void(absl::StatusOr<PartResult>)>;

// Counts the steps that a task holds and their values, as `trireme status --json` shows them.
struct StepGauges {
  explicit StepGauges(Metrics& metrics)
      : steps(metrics.gauge("steps_active")),
        values(metrics.gauge("step_values_waiting")),
        operators(metrics.counter("step_operators_run")) {}

  Gauge& steps;
  Gauge& values;  // values that have arrived and are not used yet
  Counter& operators;
};

// Runs the part of one step on this task. Keeps the values that other tasks send to it, which may
// arrive before it is asked to run, and waits for them without holding a thread. Thread-safe. Must
// be held by a shared_ptr. The gauges must outlive it; the executor, until it has called back.
class PartStep : public std::enable_shared_from_this<PartStep>, private Transfers {
 public:
  PartStep(std::shared_ptr<RegisteredPart> part, uint64_t number, StepGauges& gauges);
  ~PartStep() override;

  // Returns true to the first caller, which alone may call start() and removes the step at its end.
  // A request to run the step may arrive twice, and the second must not end what the first runs.
  [[nodiscard]] bool claim();
  // Runs the part. Called once. `done` is called exactly once, on any thread: with the error of
  // abort() if the step was aborted before it started.
  void start(PartInputs inputs, std::vector<std::shared_ptr<HostedVariable>> variables,
             Executor& executor, OnPartResult done);
  // Takes a value from another task. Duplicates, and values that come too late, are dropped.
  void deliver(uint32_t edge, Pieces pieces);
  // Returns true if the step has not ended and its deadline has passed.
  bool is_late(Time now);
  // Ends the step with this error, unless it is over. No further operator is started.
  void abort(absl::Status why);

 private:
  std::optional<Pieces> take(uint32_t receive) override;
  void send(uint32_t send, Pieces pieces) override;
  void flush() override;

  // Returns true if the part usually takes less time than waking another thread would.
  bool runs_inline() const;
  // Runs operators until the part is done, fails, or needs a value that has not arrived.
  void advance();
  // Sends values to the task that uses them. The step ends only after they have been delivered.
  void deliver_to(const RegisteredPart::Destination& destination,
                  std::vector<CrossingValue> values);
  void on_delivered(const absl::Status& status);
  void finish_if_over();
  void finish(absl::Status status);

  const std::shared_ptr<RegisteredPart> part_;
  const uint64_t number_;
  StepGauges& gauges_;
  std::stop_source stop_;

  // State of the run. Used by one thread at a time: the one that start() or deliver() lets advance.
  std::vector<std::shared_ptr<HostedVariable>> variables_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<PartRun> run_;
  Executor* executor_ = nullptr;
  Time deadline_;
  // Small values that wait to be sent together, by channel and incarnation.
  std::map<std::pair<const Channel*, uint64_t>,
           std::pair<RegisteredPart::Destination, std::vector<CrossingValue>>>
      outbox_;
  PartResult result_;
  uint32_t wanted_ = 0;  // edge of the value that the run stopped at
  Duration busy_ = {};   // time spent in operators so far
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;

  Mutex mutex_;
  std::map<uint32_t, Pieces> arrived_ ABSL_GUARDED_BY(mutex_);
  // Edge whose value the parked run waits for; empty while a thread runs it.
  std::optional<uint32_t> awaited_ ABSL_GUARDED_BY(mutex_);
  Time limit_ ABSL_GUARDED_BY(mutex_) = Time::max();  // deadline, once started
  OnPartResult done_ ABSL_GUARDED_BY(mutex_);
  bool claimed_ ABSL_GUARDED_BY(mutex_) = false;  // true once claim() was called
  bool started_ ABSL_GUARDED_BY(mutex_) = false;  // true once start() was called
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;    // true once the result is decided
  bool ran_ ABSL_GUARDED_BY(mutex_) = false;      // true once all operators have run
  int delivering_ ABSL_GUARDED_BY(mutex_) = 0;    // number of Deliver calls in flight
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);  // first error given to abort()
};

}  // namespace trireme::internal
