#include "trireme/runtime/master_step.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

// The life of a step at the master:
//
// 1. start() numbers the step within its registration and sends RunPart to every task that has a
//    part. All parts start at once; parts that need values of others wait for them on their own
//    tasks (part_step.cc).
// 2. Values travel directly between tasks. Only values for the master itself that are ready at the
//    end of a part come with that part's answer; on_part() delivers them to the master's worker.
// 3. finish() returns the outputs once all parts have answered. Alternatively fail() ends the step
//    with the first error: it stops the calls, sends AbortStep to every task, and calls back
//    without waiting for the parts. Their later answers are ignored.
//
// A task that is frozen or cut off does not refuse a call; its part would be missed only at the
// deadline, which may be minutes away. Therefore check_tasks() sends health checks to the tasks
// that keep a long step waiting. Health checks are answered by the threads that serve calls, not by
// the pool that runs operators, so a task that is merely busy passes them.
namespace trireme::internal {
namespace {

using std::chrono::seconds;

// A task that does not answer a health check for this long is lost, however busy it is.
constexpr auto kTaskLostTimeout = seconds(3);

// One step, while it runs. The callbacks of its calls keep it alive.
class MasterStep final : public RunningStep, public std::enable_shared_from_this<MasterStep> {
 public:
  MasterStep(std::shared_ptr<MasterGraph> graph,
             std::shared_ptr<const MasterGraph::Registered> registered,
             std::shared_ptr<Worker> worker, StepInputs inputs, OnStepResult done)
      : graph_(std::move(graph)),
        registered_(std::move(registered)),
        worker_(std::move(worker)),
        inputs_(std::move(inputs)),
        done_(std::move(done)) {}

  void start() override {
    const std::vector<GraphPart>& parts = graph_->parts();
    {
      MutexLock lock(mutex_);
      if (over_) return;  // cancelled before it began
      begun_ = true;
      key_ = {registered_->id, graph_->begin_step(weak_from_this())};
      outputs_.resize(graph_->placed().graph->def.outputs_size());
      waiting_.assign(parts.size(), true);
      pending_ = static_cast<int>(parts.size());
    }
    if (parts.empty()) return finish();
    // The first part is the master's own, if it has one. It is started last, since it may run on
    // this thread and would delay the others.
    for (size_t i = 1; i <= parts.size(); ++i) start_part(i % parts.size());
  }

  void cancel() override { fail(make_status(ErrorCode::kCancelled, "the step was cancelled")); }

  // Checks the health of the tasks that keep the step waiting: every second, once the step has
  // taken a second or a quarter of its time. Leaves a third of the remaining time, so that the
  // error is reported before the deadline.
  void check_tasks() override {
    const Time now = Clock::real().now();
    const Duration whole = inputs_.deadline - started_, left = inputs_.deadline - now;
    if (now < started_ + std::min<Duration>(seconds(1), whole / 4) || now < next_health_check_ ||
        left <= Duration::zero()) {
      return;
    }
    next_health_check_ = now + seconds(1);
    std::vector<size_t> asked;
    {
      MutexLock lock(mutex_);
      if (over_) return;
      for (size_t i = 0; i < waiting_.size(); ++i) {
        if (waiting_[i]) asked.push_back(i);
      }
    }
    const Time limit = now + std::min<Duration>(kTaskLostTimeout, left * 2 / 3);
    for (size_t i : asked) check_task_health(i, limit);
  }

 private:
  std::vector<at::Tensor> inputs_of(const GraphPart& part) const {
    std::vector<at::Tensor> tensors;
    tensors.reserve(part.inputs.size());
    for (uint32_t input : part.inputs) tensors.push_back(inputs_.tensors[input]);
    return tensors;
  }

  void start_part(size_t index) {
    const GraphPart& part = graph_->parts()[index];
    PartInputs inputs{inputs_of(part), inputs_.seed, inputs_.step, inputs_.deadline,
                      stop_.get_token()};
    registered_->tasks[index]->run_part(
        key_, graph_->oldest_step(), part, std::move(inputs),
        [self = shared_from_this(), index](absl::StatusOr<PartResult> result) {
          self->on_part(index, std::move(result));
        });
  }

  void on_part(size_t index, absl::StatusOr<PartResult> result) {
    const GraphPart& part = graph_->parts()[index];
    if (result.ok() && !result->crossings.empty()) {
      const absl::Status delivered =
          worker_->deliver(key_, std::move(result->crossings), inputs_.deadline);
      if (!delivered.ok()) result = delivered;
    }
    if (!result.ok()) {
      fail(with_origin(result.status(), {part.task.to_string(), ""}));
    }
    bool over = false;
    {
      MutexLock lock(mutex_);
      if (result.ok()) {
        for (size_t i = 0; i < part.outputs.size(); ++i) {
          outputs_[part.outputs[i]] = std::move(result->outputs[i]);
        }
      }
      waiting_[index] = false;
      over = --pending_ == 0;
    }
    if (over) finish();
  }

  // Ends the step with its first error. Errors that follow are consequences of it and are ignored.
  void fail(absl::Status error) {
    OnStepResult done;
    bool begun = false;
    {
      MutexLock lock(mutex_);
      if (over_) return;
      over_ = true;
      begun = begun_;
      done = std::move(done_);
    }
    if (!begun) return done(std::move(error));
    // The task is gone, was restarted, or has dropped its part: the next step registers again.
    const ErrorCode code = error_code(error);
    if (code == ErrorCode::kTaskUnreachable || code == ErrorCode::kIncarnationChanged ||
        code == ErrorCode::kNotFound) {
      graph_->invalidate(*registered_);
    }
    abort_everywhere(error);
    graph_->end_step(key_.number);
    done(std::move(error));
  }

  void abort_everywhere(const absl::Status& error) {
    stop_.request_stop();
    const std::string reason(error.message());
    for (const auto& task : registered_->tasks) task->abort_step(key_, reason);
  }

  void finish() {
    OnStepResult done;
    std::vector<at::Tensor> outputs;
    {
      MutexLock lock(mutex_);
      if (over_) return;
      over_ = true;
      done = std::move(done_);
      outputs = std::move(outputs_);
    }
    graph_->end_step(key_.number);
    done(std::move(outputs));
  }

  void check_task_health(size_t index, Time limit) {
    registered_->tasks[index]->check_health(
        limit, [self = shared_from_this(), index](const absl::Status& answer) {
          if (!answer.ok()) self->on_lost(index, answer);
        });
  }

  void on_lost(size_t index, const absl::Status& why) {
    {
      MutexLock lock(mutex_);
      if (over_ || !waiting_[index]) return;
    }
    const std::string task = graph_->parts()[index].task.to_string();
    const ErrorCode code = error_code(why) == ErrorCode::kIncarnationChanged
                               ? ErrorCode::kIncarnationChanged
                               : ErrorCode::kTaskUnreachable;
    fail(make_status(code,
                     absl::StrCat("the task does not answer while a step waits for it (",
                                  std::string(why.message()), ")"),
                     {task, ""}));
  }

  const std::shared_ptr<MasterGraph> graph_;
  const std::shared_ptr<const MasterGraph::Registered> registered_;
  const std::shared_ptr<Worker> worker_;  // the master's own, which gets values from other parts
  const StepInputs inputs_;
  StepKey key_;  // set by start(), and not used before begun_ is true
  const Time started_ = Clock::real().now();
  Time next_health_check_ = Time::min();  // used by check_tasks() only
  std::stop_source stop_;                 // stops the calls to the tasks

  Mutex mutex_;
  OnStepResult done_ ABSL_GUARDED_BY(mutex_);
  std::vector<at::Tensor> outputs_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> waiting_ ABSL_GUARDED_BY(mutex_);  // by part: true until it has answered
  int pending_ ABSL_GUARDED_BY(mutex_) = 0;            // number of parts that have not answered
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;         // true once start() has numbered the step
  bool over_ ABSL_GUARDED_BY(mutex_) = false;          // true once the result was decided
};

}  // namespace

std::shared_ptr<RunningStep> make_master_step(
    std::shared_ptr<MasterGraph> graph, std::shared_ptr<const MasterGraph::Registered> registered,
    std::shared_ptr<Worker> worker, StepInputs inputs, OnStepResult done) {
  return std::make_shared<MasterStep>(std::move(graph), std::move(registered), std::move(worker),
                                      std::move(inputs), std::move(done));
}

}  // namespace trireme::internal
