#include "trireme/ps/session_jobs.h"

#include <algorithm>
#include <future>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/ps/job_membership.h"
#include "trireme/ps/job_service.h"
#include "trireme/ps/jobs.pb.h"
#include "trireme/rpc/connect.h"

// A session uses any tasks of its cluster, and some may be down. So its master begins the job's
// generation at a task only when the session first uses that task, and asks all tasks that answer
// soon for the highest generation that they know.
namespace trireme {
namespace {

// Time that tasks have to say which generation they know.
constexpr Duration kFindTime = std::chrono::seconds(1);

std::shared_ptr<Channel> channel_to(const TaskContext& context, const TaskId& task) {
  return std::make_shared<Channel>(ChannelOptions{.address = context.spec.address(task),
                                                  .task = task.to_string(),
                                                  .caller = context.incarnation,
                                                  .caller_task = context.task.to_string(),
                                                  .credentials = context.credentials,
                                                  .faults = context.faults,
                                                  .serving = context.serving});
}

// Returns the workers and ps tasks of the cluster, with the one that holds the counter first.
std::vector<TaskId> tasks_with_variables(const ClusterSpec& spec) {
  std::vector<TaskId> tasks;
  for (const char* job : {"ps", "worker"}) {
    for (const TaskId& task : spec.all_tasks()) {
      if (task.job == job) tasks.push_back(task);
    }
  }
  return tasks;
}

// Returns the highest generation of a job that the tasks know. Ignores tasks that do not answer.
uint64_t known_generation(const TaskContext& context, const std::vector<TaskId>& tasks,
                          const std::string& job, Time deadline) {
  FindJobRequest request;
  request.set_job(job);
  std::vector<std::future<Response>> answers;
  for (const TaskId& task : tasks) {
    auto answer = std::make_shared<std::promise<Response>>();
    answers.push_back(answer->get_future());
    channel_to(context, task)
        ->call(kFindJob, make_message(request), {.deadline = deadline},
               [answer](Response response) { answer->set_value(std::move(response)); });
  }
  uint64_t highest = 0;
  for (auto& answer : answers) {
    const Response response = answer.get();
    if (!response.ok()) continue;
    const auto found = parse_body<FindJobResponse>(*response);
    if (found.ok()) highest = std::max(highest, found->generation());
  }
  return highest;
}

class SessionMembership final : public SessionJob {
 public:
  SessionMembership(const TaskContext& context, std::shared_ptr<JobMembership> membership,
                    const TaskId& counter, uint64_t incarnation)
      : context_(context), membership_(std::move(membership)), begun_{{counter, incarnation}} {}

  uint64_t generation() const override { return membership_->job().generation; }

  absl::Status begin(const TaskId& task, uint64_t incarnation, Time deadline) override {
    TRIREME_RETURN_IF_ERROR(membership_->status());
    {
      MutexLock lock(mutex_);
      const auto found = begun_.find(task);
      if (found != begun_.end() && found->second == incarnation) return absl::OkStatus();
    }
    const auto channel = channel_to(context_, task);
    TRIREME_ASSIGN_OR_RETURN(const Hello hello, channel->hello(deadline));
    TRIREME_RETURN_IF_ERROR(membership_->add_server(channel, deadline));
    MutexLock lock(mutex_);
    begun_[task] = hello.incarnation;
    return absl::OkStatus();
  }

  void renew(Time sent) override { membership_->renew(sent); }
  void leave() override { membership_->leave(); }

 private:
  const TaskContext& context_;
  const std::shared_ptr<JobMembership> membership_;
  Mutex mutex_;
  std::map<TaskId, uint64_t> begun_ ABSL_GUARDED_BY(mutex_);  // incarnations of the tasks
};

}  // namespace

absl::StatusOr<std::shared_ptr<SessionJob>> join_session_job(const TaskContext& context,
                                                             const SessionJobOptions& options,
                                                             Time deadline) {
  TRIREME_RETURN_IF_ERROR(check_job_id(options.id));
  const std::vector<TaskId> tasks = tasks_with_variables(context.spec);
  if (tasks.empty()) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "the cluster has no ps tasks and no workers to share variables on",
                       {context.task.to_string(), ""});
  }
  const TaskId& counter = tasks.front();
  const auto channel = channel_to(context, counter);
  TRIREME_RETURN_IF_ERROR(connect_all({channel.get()}, deadline).status());
  const uint64_t known =
      known_generation(context, tasks, options.id, std::min(deadline, after(kFindTime)));
  TRIREME_ASSIGN_OR_RETURN(auto membership, JobMembership::join({.id = options.id,
                                                                 .resume = options.resume,
                                                                 .keep = options.keep,
                                                                 .timer = false,
                                                                 .member = options.session,
                                                                 .at_least = known,
                                                                 .alive_at = options.sent},
                                                                {channel}, deadline));
  // A session that was forgotten by its master returns. It must not go on with the variables of
  // another program, which has begun a generation in the meantime. The session may have begun that
  // generation itself, by a request whose answer was lost.
  const uint64_t generation = membership->job().generation, before = options.generation;
  const bool is_own = generation <= before || membership->began() ||
                      (generation == before + 1 && !membership->joined());
  if (before != 0 && !is_own) {
    membership->leave();  // the other program is still a member, so nothing is freed
    return replaced_generation({options.id, before}, generation);
  }
  return std::make_shared<SessionMembership>(context, std::move(membership), counter,
                                             channel->incarnation());
}

}  // namespace trireme
