#include "trireme/coordinator/worker_links.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "trireme/base/logging.h"
#include "trireme/rpc/timer.h"

// A timer checks twice a second which workers are not connected. The first two checks diagnose them
// without logging, to find mistakes that waiting cannot fix, such as another program at the
// address. If two diagnoses in a row find such a mistake, the queue is closed, so that the user
// sees the error at once. A worker that was up before never closes the queue: it counts as lost.
// After the first checks, workers are diagnosed only when a report is due, and one line of the log
// reports all of them.
//
// A diagnosis blocks, and timers must not, so it runs on a thread of its own, at most one at a
// time.
namespace trireme::internal {
namespace {

constexpr auto kMissingCheckInterval = std::chrono::milliseconds(500);
constexpr auto kProbeTime = std::chrono::seconds(1);
constexpr int kFirstChecks = 2;  // Number of checks that diagnose even if no report is due.

}  // namespace

void WorkerLinks::update(const ClusterSpec& spec) {
  MutexLock one_at_a_time(updating_);
  std::map<int, std::string> wanted;
  std::set<int> workers;
  for (const TaskId& task : spec.all_tasks()) {
    if (task.job != "worker") continue;
    wanted[task.index] = spec.address(task);
    workers.insert(task.index);
  }
  context_->resources->prepare_workers(workers);  // First, because it may throw.
  std::vector<std::shared_ptr<ClosureDispatcher>> left;
  {
    MutexLock lock(mutex_);
    std::erase_if(dispatchers_, [&](const auto& known) {
      const auto& [worker, dispatcher] = known;
      // A worker that has moved to another address is replaced, like one that is not in the spec.
      const auto found = wanted.find(worker);
      if (found != wanted.end() &&
          found->second == dispatcher->connection()->channel()->address()) {
        wanted.erase(found);
        return false;
      }
      left.push_back(dispatcher);
      return true;
    });
  }
  for (const auto& dispatcher : left) {
    dispatcher->end();
    context_->stragglers->forget(dispatcher->worker());
  }
  context_->resources->set_workers(workers);
  for (const auto& [worker, address] : wanted) {
    auto channel =
        std::make_shared<Channel>(ChannelOptions{.address = address,
                                                 .task = TaskId{"worker", worker}.to_string(),
                                                 .credentials = credentials_});
    auto dispatcher = ClosureDispatcher::create(context_, worker, std::move(channel),
                                                [weak = weak_from_this()](uint64_t sequence) {
                                                  if (auto self = weak.lock())
                                                    self->cancel_below(sequence);
                                                });
    {
      MutexLock lock(mutex_);
      dispatchers_[worker] = dispatcher;
    }
    dispatcher->start();
  }
  {
    MutexLock lock(mutex_);
    if (std::exchange(watching_, true)) return;
  }
  watch_missing();
}

void WorkerLinks::watch_missing() {
  run_at(after(kMissingCheckInterval), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->check_for_missing(Clock::real().now());
    self->watch_missing();
  });
}

void WorkerLinks::check_for_missing(Time now) {
  const auto all = dispatchers();
  Connections missing;
  for (const auto& dispatcher : all) {
    if (!dispatcher->connection()->is_up()) missing.push_back(dispatcher->connection());
  }
  MutexLock lock(mutex_);
  if (ended_ || missing.empty()) {
    reports_.reset();
    return;
  }
  if (reporting_.valid() && reporting_.wait_for(Duration::zero()) != std::future_status::ready)
    return;
  if (!reports_) {
    reports_.emplace(now - kMissingCheckInterval);
    checks_ = 0;
    suspected_->clear();
  }
  const bool report = reports_->due(now);
  if (++checks_ > kFirstChecks && !report) return;
  reporting_ = std::async(std::launch::async, [context = context_, suspected = suspected_, missing,
                                               report, none_is_up = missing.size() == all.size()] {
    report_missing(*context, *suspected, missing, none_is_up, report);
  });
}

void WorkerLinks::report_missing(const LinkContext& context, std::set<int>& suspected,
                                 const Connections& missing, bool none_is_up, bool report) {
  std::vector<const Channel*> channels;
  for (const auto& connection : missing) channels.push_back(connection->channel().get());
  const std::vector<Diagnosis> diagnoses = diagnose_all(channels, after(kProbeTime));
  for (size_t i = 0; i < diagnoses.size(); ++i) {
    if (!diagnoses[i].is_final || missing[i]->was_ever_up()) {
      suspected.erase(missing[i]->worker());
    } else if (!suspected.insert(missing[i]->worker()).second) {
      return context.queue->close(cannot_connect(*channels[i], diagnoses[i]));
    }
  }
  if (!report || !context.queue->status().ok()) return;
  const std::string causes = list_causes(channels, diagnoses);
  const size_t waiting = context.queue->undecided();
  if (none_is_up && waiting > 0) {
    log_warning("no worker is up, ", waiting,
                waiting == 1 ? " closure waits. " : " closures wait. ", causes);
  } else {
    log_warning("waiting for ", causes);
  }
}

void WorkerLinks::cancel_below(uint64_t sequence) {
  for (const auto& dispatcher : dispatchers()) dispatcher->cancel_below(sequence);
  context_->resources->notify();
}

void WorkerLinks::cancel_unpushed() {
  constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  for (const auto& dispatcher : dispatchers()) dispatcher->cancel_below(kAll, true);
}

std::vector<std::string> WorkerLinks::busy() const {
  std::vector<std::string> tasks;
  for (const WorkerState& state : states()) {
    if (state.closures_there > 0) tasks.push_back(state.task.to_string());
  }
  return tasks;
}

void WorkerLinks::end() {
  for (const auto& dispatcher : dispatchers()) dispatcher->end();
  context_->resources->notify();
  std::future<void> reporting;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    reporting = std::move(reporting_);
  }
}

std::vector<WorkerState> WorkerLinks::states() const {
  std::vector<WorkerState> states;
  for (const auto& dispatcher : dispatchers()) states.push_back(dispatcher->state());
  return states;
}

std::vector<std::shared_ptr<ClosureDispatcher>> WorkerLinks::dispatchers() const {
  std::vector<std::shared_ptr<ClosureDispatcher>> dispatchers;
  MutexLock lock(mutex_);
  for (const auto& [worker, dispatcher] : dispatchers_) dispatchers.push_back(dispatcher);
  return dispatchers;
}

}  // namespace trireme::internal
