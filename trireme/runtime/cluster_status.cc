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

// Time to wait beyond the deadline for a call that does not end by itself.
constexpr auto kGrace = std::chrono::seconds(2);
// Time limit of a task that need not answer.
constexpr auto kOptionalAnswer = std::chrono::seconds(1);
constexpr size_t kMostNames = 5;
// Pauses between two attempts to reach a task that is not up yet. The channel's own back-off would
// grow to much longer pauses.
constexpr auto kFirstPause = std::chrono::milliseconds(50);
constexpr auto kLongestPause = std::chrono::milliseconds(500);

// One query of all tasks. Tasks that cannot be reached are asked again, if the options say so, with
// pauses that grow. The thread in run() starts all calls; their callbacks only record the answers.
// Calls in flight keep the query alive, so that an answer may arrive after run() has returned.
class StatusQuery : public std::enable_shared_from_this<StatusQuery> {
 public:
  StatusQuery(const ClusterSpec& spec, const ClusterStatusOptions& options)
      : spec_(spec), options_(options), deadline_(options.deadline), tasks_(spec.all_tasks()) {}

  ClusterStatus run() {
    for (const TaskId& task : tasks_) ask(task);
    const Time give_up = deadline_ + kGrace;
    Time report = Clock::real().now() + options_.report_every;
    Duration pause = kFirstPause;
    Time again = Clock::real().now() + pause;
    MutexLock lock(mutex_);
    while (answers_.size() < tasks_.size() && Clock::real().now() < give_up) {
      Time wake = std::min(give_up, report);
      if (!unreachable_.empty()) wake = std::min({wake, again, deadline_});
      answered_.wait_until(mutex_, wake);
      const Time now = Clock::real().now();
      if (now >= deadline_) {
        answers_.merge(unreachable_);
      } else if (now >= again) {
        pause = std::min<Duration>(pause * 3 / 2, kLongestPause);
        again = now + pause;
        const ClusterStatus unreachable = std::exchange(unreachable_, {});
        mutex_.unlock();
        for (const auto& [task, status] : unreachable) ask(task);
        mutex_.lock();
      }
      if (now >= report && answers_.size() < tasks_.size()) {
        report = now + options_.report_every;
        std::vector<TaskId> left = missing();
        mutex_.unlock();
        std::erase_if(left, [this](const TaskId& task) { return !spec_.serves(task); });
        if (options_.on_waiting && !left.empty()) options_.on_waiting(left);
        mutex_.lock();
      }
    }
    for (const TaskId& task : missing()) {
      answers_.emplace(task, make_status(ErrorCode::kDeadlineExceeded,
                                         "the call has not ended, although its deadline has passed",
                                         {task.to_string(), ""}));
    }
    return answers_;
  }

 private:
  void ask(const TaskId& task) {
    // A new channel connects at once, whereas one that has failed would back off.
    channels_[task] =
        std::make_unique<Channel>(ChannelOptions{.address = spec_.address(task),
                                                 .task = task.to_string(),
                                                 .credentials = options_.credentials});
    const Time deadline =
        spec_.serves(task) ? deadline_ : std::min(deadline_, after(kOptionalAnswer));
    describe_task(*channels_[task], CallOptions{.deadline = deadline, .stop = options_.stop},
                  [self = shared_from_this(), task](absl::StatusOr<TaskDescription> answer) {
                    self->on_answer(task, std::move(answer));
                  });
  }

  void on_answer(const TaskId& task, absl::StatusOr<TaskDescription> answer) {
    MutexLock lock(mutex_);
    if (!answer.ok() && options_.wait && spec_.serves(task) && !options_.stop.stop_requested() &&
        Clock::real().now() < deadline_ &&
        error_code(answer.status()) == ErrorCode::kTaskUnreachable) {
      unreachable_.emplace(task, std::move(answer));
      return;
    }
    if (answer.ok() && answer->task != task.to_string()) {
      answer = make_status(ErrorCode::kFailedPrecondition,
                           absl::StrCat("its address ", spec_.address(task), " is held by ",
                                        answer->task, " (pid ", answer->pid, " on ", answer->host,
                                        "); was it started with the same cluster spec?"),
                           {task.to_string(), ""});
    }
    answers_.emplace(task, std::move(answer));
    answered_.notify_all();
  }

  std::vector<TaskId> missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<TaskId> tasks;
    for (const TaskId& task : tasks_) {
      if (!answers_.contains(task)) tasks.push_back(task);
    }
    return tasks;
  }

  const ClusterSpec spec_;
  const ClusterStatusOptions options_;
  const Time deadline_;
  const std::vector<TaskId> tasks_;
  std::map<TaskId, std::unique_ptr<Channel>> channels_;  // used by the thread in run() only
  mutable Mutex mutex_;
  CondVar answered_;
  ClusterStatus unreachable_ ABSL_GUARDED_BY(mutex_);  // tasks to be asked again
  ClusterStatus answers_ ABSL_GUARDED_BY(mutex_);      // final results
};

}  // namespace

ClusterStatus describe_cluster(const ClusterSpec& spec, const ClusterStatusOptions& options) {
  spec.check_ports();
  return std::make_shared<StatusQuery>(spec, options)->run();
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
