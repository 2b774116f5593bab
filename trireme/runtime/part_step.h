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
#include "trireme/base/clock.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/base/usual_time.h"
#include "trireme/exec/part_run.h"
#include "trireme/observe/metrics.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/crossings.h"
#include "trireme/runtime/variable_host.h"

namespace trireme::internal {

// A step on all tasks that have a part of it.
struct StepKey {
  uint64_t registration = 0;
  uint64_t number = 0;
};

// A part of a graph that a master has registered with this task.
struct RegisteredPart {
  uint64_t session = 0;
  uint64_t registration = 0;
  std::string task;  // this one, for errors
  std::string container;
  std::shared_ptr<const Plan> plan;
  // Where each send goes. None: the master takes it with the answer.
  struct Destination {
    std::shared_ptr<Channel> channel;
    uint64_t incarnation = 0;
  };
  std::vector<Destination> destinations;
  // Of a run: parts that are over at once need no thread of their own.
  UsualTime usual_time{std::chrono::milliseconds(1)};
};

struct PartInputs {
  std::vector<at::Tensor> tensors;
  uint64_t seed = 0;
  uint64_t step = 0;
  Time deadline;
  std::stop_token stop;  // stops when whoever asked for the step has given it up
};

struct PartResult {
  std::vector<at::Tensor> outputs;
  std::vector<CrossingValue> crossings;  // for the master
};
using OnPartResult = absl::AnyInvocable<void(absl::StatusOr<PartResult>)>;

// How much of steps a task holds, as `trireme status --json` shows it.
struct StepGauges {
  explicit StepGauges(Metrics& metrics)
      : steps(metrics.gauge("steps_active")),
        values(metrics.gauge("step_values_waiting")),
        operators(metrics.counter("step_operators_run")) {}

  Gauge& steps;
  Gauge& values;  // that arrived and are not used yet
  Counter& operators;
};

// One part of one step on this task: what arrived for it, which may be before it is asked to run,
// and its run. It waits for other tasks without holding a thread. Thread-safe.
class PartStep : public std::enable_shared_from_this<PartStep>, private Transfers {
 public:
  PartStep(std::shared_ptr<RegisteredPart> part, uint64_t number, StepGauges& gauges);
  ~PartStep() override;

  // Asks it to run, once. Calls back exactly once, on any thread. False: somebody asked before, or
  // it is over.
  bool start(PartInputs inputs, std::vector<std::shared_ptr<HostedVariable>> variables,
             Executor& executor, OnPartResult done);
  // A value from another task. What arrived before, or comes too late, is dropped.
  void deliver(uint32_t edge, Pieces pieces);
  // Whether it should have ended by now.
  bool is_late(Time now);
  // Starts no further operator; the result is this error, if it is not over yet.
  void abort(absl::Status why);

 private:
  std::optional<Pieces> take(uint32_t receive) override;
  void send(uint32_t send, Pieces pieces) override;
  void flush() override;

  bool runs_at_once() const;
  void advance();
  void deliver_to(const RegisteredPart::Destination& destination,
                  std::vector<CrossingValue> values);
  void on_delivered(const absl::Status& status);
  void finish_if_over();
  void finish(absl::Status status);

  const std::shared_ptr<RegisteredPart> part_;
  const uint64_t number_;
  StepGauges& gauges_;
  std::stop_source stop_;

  // Of the run; used by one thread at a time.
  std::vector<std::shared_ptr<HostedVariable>> variables_;
  std::unique_ptr<PartRun> run_;
  Executor* executor_ = nullptr;
  Time deadline_;
  std::map<std::pair<const Channel*, uint64_t>,
           std::pair<RegisteredPart::Destination, std::vector<CrossingValue>>>
      outbox_;
  PartResult result_;
  uint32_t wanted_ = 0;  // the edge that the run stopped at
  Duration busy_ = {};
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;

  Mutex mutex_;
  std::map<uint32_t, Pieces> arrived_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint32_t> awaited_ ABSL_GUARDED_BY(mutex_);  // the edge, while no thread runs it
  Time limit_ ABSL_GUARDED_BY(mutex_) = Time::max();
  OnPartResult done_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the result is out
  bool ran_ ABSL_GUARDED_BY(mutex_) = false;    // all its operators have run
  int delivering_ ABSL_GUARDED_BY(mutex_) = 0;  // calls under way
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
