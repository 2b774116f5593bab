#include "trireme/coordinator/ps_watch.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/rpc/async_hello.h"
#include "trireme/rpc/timer.h"

// The loss of a parameter server is final, since its variables are lost with it. So it is declared
// for one of these reasons only:
//
//   - the process is gone: its address refuses connections, or another incarnation answers there.
//     This is certain, and declared at once;
//   - the server has been silent for kServerCheckTimeout, longer than a partition may take to heal.
//     A route that is missing or a connection that breaks is silence too.
//
// The worker that reported the failure has given up after a few seconds; its closures wait for the
// outcome of the check. If the server answers, the fault is between the worker and the server, and
// other workers run the closures.
namespace trireme::internal {
namespace {

constexpr auto kServerCheckTimeout = std::chrono::seconds(15);
// Delay before closures are requeued whose pushes a server has rejected.
constexpr auto kRejectionDelay = std::chrono::milliseconds(100);
// Time for which a closure goes to other workers than the one on which it failed. Bounded, because
// the others may be busy for hours, and the worker's route to the server may be healed by then.
constexpr auto kAvoidanceTime = std::chrono::seconds(30);

}  // namespace

bool indicates_lost_task(const absl::Status& error) {
  switch (error_code(error)) {
    case ErrorCode::kTaskUnreachable:
    case ErrorCode::kIncarnationChanged:
    case ErrorCode::kDeadlineExceeded:
    case ErrorCode::kUnavailable:
      return true;
    default:
      return false;
  }
}

PsWatch::PsWatch(const ClusterSpec& spec, const Credentials& credentials,
                 std::vector<uint64_t> incarnations, std::shared_ptr<HealthChecker> health_checker,
                 std::shared_ptr<ClosureQueue> queue)
    : incarnations_(std::move(incarnations)),
      health_checker_(std::move(health_checker)),
      queue_(std::move(queue)) {
  for (int i = 0; i < spec.num_tasks("ps"); ++i) {
    const TaskId task{"ps", i};
    channels_.push_back(std::make_shared<Channel>(ChannelOptions{
        .address = spec.address(task), .task = task.to_string(), .credentials = credentials}));
    // Connects now rather than at the first check, when the server may be busy.
    say_hello(*channels_.back(), {.deadline = after(kServerCheckTimeout)}, [](const auto&) {});
  }
}

int PsWatch::server_of(const absl::Status& error) const {
  if (!indicates_lost_task(error) && error_code(error) != ErrorCode::kAborted) return -1;
  const std::string task = error_origin(error).task;
  for (size_t i = 0; i < channels_.size(); ++i) {
    if (channels_[i]->task() == task) return static_cast<int>(i);
  }
  return -1;
}

bool PsWatch::is_rejection(const absl::Status& error) const {
  return error_code(error) == ErrorCode::kAborted && is_server_failure(error);
}

void PsWatch::check_and_requeue(const absl::Status& error, int worker,
                                std::vector<ClosurePtr> closures) {
  // Cancels the closures. The error that is pending, and the fence before it, wait for them.
  if (queue_->is_given_up(closures)) return queue_->put_back(closures);
  const bool rejected = is_rejection(error);
  if (const auto suppressed = rejected ? rejections_.admit() : std::nullopt) {
    log_warning(error_origin(error).task, " has rejected updates of /job:worker/task:", worker,
                ", whose closures run again: ", describe(error),
                *suppressed > 0 ? absl::StrCat(" (and ", *suppressed, " more times)") : "");
  }
  check_server(error, [queue = queue_, error, worker, rejected,
                       closures = std::move(closures)](bool lost) {
    // If the server is lost, the queue is closed by now and requeuing cancels the closures.
    if (rejected) {
      return run_at(after(kRejectionDelay), [queue, closures] { queue->put_back(closures); });
    }
    if (!lost) {
      log_warning("/job:worker/task:", worker, " cannot use ", error_origin(error).task,
                  ", which answers the coordinator. Other workers run its closures, if there are "
                  "any, and it backs off: ",
                  describe(error));
    }
    queue->put_back_elsewhere(closures, worker, after(kAvoidanceTime));
  });
}

void PsWatch::check_server(const absl::Status& error, Done done) {
  const int server = server_of(error);
  health_checker_->check(channels_[server], incarnations_[server],
                         {.limit = after(kServerCheckTimeout),
                          .unreachable_time = Duration::zero(),
                          .fails_if_refused = true},
                         [queue = queue_, task = channels_[server]->task(),
                          done = std::move(done)](const absl::Status& answer) mutable {
                           if (!indicates_lost_task(answer)) return done(false);
                           const absl::Status lost = lost_server(task, answer);
                           if (queue->status().ok()) log_error(describe(lost));
                           queue->close(lost);
                           done(true);
                         });
}

absl::Status lost_server(const std::string& task, const absl::Status& answer) {
  return make_status(
      ErrorCode::kDataLoss,
      absl::StrCat("the parameter server is lost, together with its variables: ",
                   std::string(answer.message()),
                   ". Start this ps task again, then the program, as `trireme launch --restart` "
                   "does. The program continues from its newest checkpoint if its fit() has the "
                   "callback BackupAndRestore, or if it calls "
                   "CheckpointManager::restore_or_initialize() before it trains; otherwise it "
                   "begins afresh"),
      {task, ""});
}

}  // namespace trireme::internal
