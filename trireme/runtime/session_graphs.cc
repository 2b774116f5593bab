#include "trireme/runtime/session_graphs.h"

#include <algorithm>

namespace trireme::internal {

uint64_t SessionGraphs::next_number() {
  MutexLock lock(mutex_);
  return next_number_++;
}

void SessionGraphs::add(const std::shared_ptr<const KnownGraph>& graph) {
  MutexLock lock(mutex_);
  contents_.put(graph->content, graph);
  contents_.evict(kMostGraphs);
  add_plan(graph->plan, graph);
}

std::shared_ptr<const KnownGraph> SessionGraphs::find(const Plan* plan) {
  MutexLock lock(mutex_);
  const auto* found = plans_.find(plan);
  if (found == nullptr) return nullptr;
  contents_.find(found->second->content);  // uses it, since it may be found by its content later
  return found->second;
}

std::shared_ptr<const KnownGraph> SessionGraphs::find_same(const FunctionStep& step,
                                                           const Fingerprint& content) {
  MutexLock lock(mutex_);
  const auto* found = contents_.find(content);
  if (found == nullptr) return nullptr;
  // A variable that is gone may have left its name to another one.
  const auto is_same = [](const auto& known, const auto& used) { return known.lock() == used; };
  if (!std::ranges::equal((*found)->variables, step.variables, is_same)) return nullptr;
  add_plan(step.plan, *found);
  return *found;
}

void SessionGraphs::clear() {
  MutexLock lock(mutex_);
  plans_.clear();
  contents_.clear();
}

void SessionGraphs::add_plan(const std::shared_ptr<const Plan>& plan, const GraphPtr& graph) {
  plans_.put(plan.get(), {plan, graph});
  plans_.evict(kMostGraphs);
}

}  // namespace trireme::internal
