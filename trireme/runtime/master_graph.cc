#include "trireme/runtime/master_graph.h"

#include <utility>

namespace trireme::internal {

MasterGraph::MasterGraph(uint64_t session, SessionSettings settings, PlacedGraph placed,
                         std::vector<GraphPart> parts)
    : session_(session),
      settings_(std::move(settings)),
      placed_(std::move(placed)),
      parts_(std::move(parts)) {}

std::shared_ptr<const MasterGraph::Registered> MasterGraph::registered() const {
  MutexLock lock(mutex_);
  return registered_;
}

void MasterGraph::set_registered(std::shared_ptr<const Registered> registered) {
  MutexLock lock(mutex_);
  registered_ = std::move(registered);
}

void MasterGraph::invalidate(const Registered& registered) {
  MutexLock lock(mutex_);
  // Another step may have failed before and a newer registration may be in place: that one stays.
  if (registered_.get() == &registered) registered_.reset();
}

uint64_t MasterGraph::begin_step(std::weak_ptr<RunningStep> step) {
  MutexLock lock(mutex_);
  under_way_.emplace(next_step_, std::move(step));
  return next_step_++;
}

void MasterGraph::check_steps() {
  // A step that fails its check calls end_step(), which takes the lock.
  std::vector<std::shared_ptr<RunningStep>> steps;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, weak] : under_way_) {
      if (auto step = weak.lock()) steps.push_back(std::move(step));
    }
  }
  for (const auto& step : steps) step->check_tasks();
}

void MasterGraph::end_step(uint64_t number) {
  MutexLock lock(mutex_);
  under_way_.erase(number);
}

bool MasterGraph::has_steps() const {
  MutexLock lock(mutex_);
  return !under_way_.empty();
}

uint64_t MasterGraph::oldest_step() const {
  MutexLock lock(mutex_);
  return under_way_.empty() ? next_step_ : under_way_.begin()->first;
}

}  // namespace trireme::internal
