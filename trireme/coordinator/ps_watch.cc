#include "trireme/coordinator/ps_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/rpc/async_hello.h"

namespace trireme::internal {
namespace {

// Longer than with workers: a server that is only busy must not be taken for lost, as that is
// final. Who refuses connections, or is another incarnation, is known to be lost at once.
constexpr auto kPatience = std::chrono::seconds(15);

}  // namespace

bool says_gone(const absl::Status& error) {
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
                 std::vector<uint64_t> incarnations, std::shared_ptr<LifeSigns> life_signs,
                 std::shared_ptr<ClosureQueue> queue)
    : incarnations_(std::move(incarnations)),
      life_signs_(std::move(life_signs)),
      queue_(std::move(queue)) {
  for (int i = 0; i < spec.num_tasks("ps"); ++i) {
    const TaskId task{"ps", i};
    channels_.push_back(std::make_shared<Channel>(ChannelOptions{
        .address = spec.address(task), .task = task.to_string(), .credentials = credentials}));
    // Now, not when it is busy.
    say_hello(*channels_.back(), {.deadline = after(kPatience)}, [](const auto&) {});
  }
}

int PsWatch::server_of(const absl::Status& error) const {
  if (!says_gone(error)) return -1;
  const std::string task = error_origin(error).task;
  for (size_t i = 0; i < channels_.size(); ++i) {
    if (channels_[i]->task() == task) return static_cast<int>(i);
  }
  return -1;
}

void PsWatch::ask(const absl::Status& error, Done done) {
  const int server = server_of(error);
  life_signs_->ask(
      channels_[server], incarnations_[server], after(kPatience),
      [queue = queue_, task = channels_[server]->task(),
       done = std::move(done)](const absl::Status& answer) mutable {
        if (!says_gone(answer)) return done(false);
        const absl::Status lost = make_status(
            ErrorCode::kDataLoss,
            absl::StrCat("it is lost, and the variables on it: ", std::string(answer.message()),
                         ". Start the program again; it goes on from its last checkpoint"),
            {task, ""});
        if (queue->status().ok()) log_error(describe(lost));
        queue->close(lost);
        done(true);
      });
}

}  // namespace trireme::internal
