#include "trireme/coordinator/ps_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/rpc/async_hello.h"

namespace trireme::internal {
namespace {

// Longer than for workers: a server that is merely busy must not be declared lost, because that is
// final. A server that refuses connections or has another incarnation is known to be lost at once.
constexpr auto kServerCheckTimeout = std::chrono::seconds(15);

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
  if (!indicates_lost_task(error)) return -1;
  const std::string task = error_origin(error).task;
  for (size_t i = 0; i < channels_.size(); ++i) {
    if (channels_[i]->task() == task) return static_cast<int>(i);
  }
  return -1;
}

void PsWatch::check_server(const absl::Status& error, Done done) {
  const int server = server_of(error);
  health_checker_->check(
      channels_[server], incarnations_[server], after(kServerCheckTimeout),
      [queue = queue_, task = channels_[server]->task(),
       done = std::move(done)](const absl::Status& answer) mutable {
        if (!indicates_lost_task(answer)) return done(false);
        const absl::Status lost = make_status(
            ErrorCode::kDataLoss,
            absl::StrCat("the parameter server is lost, together with its variables: ",
                         std::string(answer.message()),
                         ". Training has to start over, since checkpoints do not exist yet: "
                         "restart all ps tasks, then the program"),
            {task, ""});
        if (queue->status().ok()) log_error(describe(lost));
        queue->close(lost);
        done(true);
      });
}

}  // namespace trireme::internal
