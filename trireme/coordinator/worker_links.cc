#include "trireme/coordinator/worker_links.h"

#include <set>

namespace trireme::internal {

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
}

void WorkerLinks::cancel_below(uint64_t sequence) {
  for (const auto& link : links()) link->cancel_below(sequence);
}

void WorkerLinks::end() {
  for (const auto& link : links()) link->end();
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
