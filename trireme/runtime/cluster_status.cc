#include "trireme/runtime/cluster_status.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"

namespace trireme {
namespace {

// Calls keep to their deadline by themselves; should one not, it is not waited for much longer.
constexpr auto kGrace = std::chrono::seconds(2);
constexpr size_t kMostNames = 5;

// One question to all. Calls hold it, so that an answer after the end finds it still there.
class Inquiry : public std::enable_shared_from_this<Inquiry> {
 public:
  Inquiry(const ClusterSpec& spec, const ClusterStatusOptions& options)
      : spec_(spec), options_(options), deadline_(options.deadline) {
    for (const TaskId& task : spec.all_tasks()) {
      channels_.emplace(
          task, std::make_unique<Channel>(ChannelOptions{.address = spec.address(task),
                                                         .task = task.to_string(),
                                                         .credentials = options.credentials}));
    }
  }

  void ask_all() {
    for (const auto& [task, channel] : channels_) ask(task);
  }

  ClusterStatus wait() {
    MutexLock lock(mutex_);
    const Time give_up = deadline_ + kGrace;
    Time report = Clock::real().now() + options_.report_every;
    while (answers_.size() < channels_.size() && Clock::real().now() < give_up) {
      answered_.wait_until(mutex_, std::min(give_up, report));
      if (Clock::real().now() < report || answers_.size() == channels_.size()) continue;
      report += options_.report_every;
      const std::vector<TaskId> left = missing();
      mutex_.unlock();
      if (options_.on_waiting) options_.on_waiting(left);
      mutex_.lock();
    }
    for (const TaskId& task : missing()) {
      answers_.emplace(task, make_status(ErrorCode::kDeadlineExceeded,
                                         "no answer, and the call did not end at its deadline",
                                         {task.to_string(), ""}));
    }
    return answers_;
  }

 private:
  void ask(const TaskId& task) {
    describe_task(
        *channels_.at(task),
        CallOptions{.deadline = deadline_, .wait_for_ready = options_.wait, .stop = options_.stop},
        [self = shared_from_this(), task](absl::StatusOr<TaskDescription> answer) {
          self->on_answer(task, std::move(answer));
        });
  }

  void on_answer(const TaskId& task, absl::StatusOr<TaskDescription> answer) {
    // A server that goes down while it is asked may come up again.
    if (!answer.ok() && options_.wait && Clock::real().now() < deadline_ &&
        error_code(answer.status()) == ErrorCode::kTaskUnreachable) {
      return ask(task);
    }
    if (answer.ok() && answer->task != task.to_string()) {
      answer = make_status(
          ErrorCode::kFailedPrecondition,
          absl::StrCat("at ", spec_.address(task), " is ", answer->task, " (pid ", answer->pid,
                       " on ", answer->host, "); was it started with the same cluster spec?"),
          {task.to_string(), ""});
    }
    MutexLock lock(mutex_);
    answers_.emplace(task, std::move(answer));
    answered_.notify_all();
  }

  std::vector<TaskId> missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<TaskId> tasks;
    for (const auto& [task, channel] : channels_) {
      if (!answers_.contains(task)) tasks.push_back(task);
    }
    return tasks;
  }

  const ClusterSpec spec_;
  const ClusterStatusOptions options_;
  const Time deadline_;
  std::map<TaskId, std::unique_ptr<Channel>> channels_;
  mutable Mutex mutex_;
  CondVar answered_;
  ClusterStatus answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

ClusterStatus describe_cluster(const ClusterSpec& spec, const ClusterStatusOptions& options) {
  auto inquiry = std::make_shared<Inquiry>(spec, options);
  inquiry->ask_all();
  return inquiry->wait();
}

std::string list_tasks(const ClusterSpec& spec, const std::vector<TaskId>& tasks) {
  std::string text;
  for (size_t i = 0; i < std::min(tasks.size(), kMostNames); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", tasks[i].to_string(), " (", spec.address(tasks[i]),
                    ")");
  }
  if (tasks.size() > kMostNames)
    absl::StrAppend(&text, " and ", tasks.size() - kMostNames, " more");
  return text;
}

}  // namespace trireme
