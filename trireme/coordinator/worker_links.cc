#include "trireme/coordinator/worker_links.h"

#include <algorithm>
#include <set>
#include <utility>

#include "trireme/base/logging.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {
namespace {

constexpr auto kLookAtWorkers = std::chrono::milliseconds(500);
constexpr auto kProbeTime = std::chrono::seconds(1);
constexpr int kFirstLooks = 2;

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
  context_->resources->prepare_workers(workers);  // may throw, so before all else
  std::vector<std::shared_ptr<WorkerLink>> left;
  {
    MutexLock lock(mutex_);
    std::erase_if(links_, [&](const auto& known) {
      const auto& [worker, link] = known;
      const auto found = wanted.find(worker);
      if (found != wanted.end() && found->second == link->address()) {
        wanted.erase(found);
        return false;
      }
      left.push_back(link);
      return true;
    });
  }
  for (const auto& link : left) {
    link->end();
    context_->stragglers->forget(link->worker());
  }
  context_->resources->set_workers(workers);
  for (const auto& [worker, address] : wanted) {
    auto channel =
        std::make_shared<Channel>(ChannelOptions{.address = address,
                                                 .task = TaskId{"worker", worker}.to_string(),
                                                 .credentials = credentials_});
    auto link = std::make_shared<WorkerLink>(context_, worker, std::move(channel),
                                             [weak = weak_from_this()](uint64_t sequence) {
                                               if (auto self = weak.lock())
                                                 self->cancel_below(sequence);
                                             });
    {
      MutexLock lock(mutex_);
      links_[worker] = link;
    }
    link->start();
  }
  {
    MutexLock lock(mutex_);
    if (std::exchange(watching_, true)) return;
  }
  watch_missing();
}

void WorkerLinks::watch_missing() {
  run_at(after(kLookAtWorkers), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->look_for_missing(Clock::real().now());
    self->watch_missing();
  });
}

void WorkerLinks::look_for_missing(Time now) {
  std::vector<std::shared_ptr<WorkerLink>> missing = links();
  const size_t all = missing.size();
  std::erase_if(missing, [](const auto& link) { return link->is_up(); });
  MutexLock lock(mutex_);
  if (ended_ || missing.empty()) {
    reports_.reset();
    return;
  }
  if (telling_.valid() && telling_.wait_for(Duration::zero()) != std::future_status::ready) return;
  // The first looks are for mistakes that waiting cannot mend; they are not worth a line.
  if (!reports_) {
    reports_.emplace(now - kLookAtWorkers);
    looks_ = 0;
    suspected_->clear();
  }
  const bool report = reports_->due(now);
  if (++looks_ > kFirstLooks && !report) return;
  telling_ = std::async(std::launch::async, [context = context_, suspected = suspected_, missing,
                                             report, none_is_up = missing.size() == all] {
    tell_missing(*context, *suspected, missing, none_is_up, report);
  });
}

void WorkerLinks::tell_missing(const LinkContext& context, std::set<int>& suspected,
                               const std::vector<std::shared_ptr<WorkerLink>>& missing,
                               bool none_is_up, bool report) {
  std::vector<const Channel*> channels;
  for (const auto& link : missing) channels.push_back(link->channel().get());
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
  for (const auto& link : links()) link->cancel_below(sequence);
}

void WorkerLinks::end() {
  for (const auto& link : links()) link->end();
  std::future<void> telling;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    telling = std::move(telling_);
  }
}

std::vector<WorkerState> WorkerLinks::states() const {
  std::vector<WorkerState> states;
  for (const auto& link : links()) states.push_back(link->state());
  return states;
}

std::vector<std::shared_ptr<WorkerLink>> WorkerLinks::links() const {
  std::vector<std::shared_ptr<WorkerLink>> links;
  MutexLock lock(mutex_);
  for (const auto& [worker, link] : links_) links.push_back(link);
  return links;
}

}  // namespace trireme::internal
