#include "trireme/runtime/session_graphs.h"

#include <algorithm>
#include <iterator>

namespace trireme::internal {
namespace {

constexpr size_t kKnownPlans = 256;
// Number of graphs that were registered last and are taken to be at the master. A master keeps 256
// (master_sessions.cc). The rest is room for graphs that are registered while a step of an older
// graph is in flight.
constexpr uint64_t kGraphsAtMaster = 240;

}  // namespace

uint64_t SessionGraphs::next_number() {
  MutexLock lock(mutex_);
  return next_number_++;
}

void SessionGraphs::add(const std::shared_ptr<const KnownGraph>& graph) {
  MutexLock lock(mutex_);
  for (auto entry = contents_.begin(); entry != contents_.end();) {
    entry = may_be_dropped(*entry->second) ? contents_.erase(entry) : std::next(entry);
  }
  contents_[graph->content] = graph;
  remember(graph->plan, graph);
}

std::shared_ptr<const KnownGraph> SessionGraphs::find(const Plan* plan) {
  MutexLock lock(mutex_);
  const auto found = plans_.find(plan);
  if (found == plans_.end() || may_be_dropped(*found->second.second)) return nullptr;
  return found->second.second;
}

std::shared_ptr<const KnownGraph> SessionGraphs::find_same(const FunctionStep& step,
                                                           const Fingerprint& content) {
  MutexLock lock(mutex_);
  const auto found = contents_.find(content);
  if (found == contents_.end() || may_be_dropped(*found->second)) return nullptr;
  // A variable that is gone may have left its name to another one.
  const auto is_same = [](const auto& known, const auto& used) { return known.lock() == used; };
  if (!std::ranges::equal(found->second->variables, step.variables, is_same)) return nullptr;
  remember(step.plan, found->second);
  return found->second;
}

void SessionGraphs::clear() {
  MutexLock lock(mutex_);
  plans_.clear();
  recent_.clear();
  contents_.clear();
}

bool SessionGraphs::may_be_dropped(const KnownGraph& graph) const {
  return graph.graph + kGraphsAtMaster < next_number_;
}

void SessionGraphs::remember(const std::shared_ptr<const Plan>& plan,
                             const std::shared_ptr<const KnownGraph>& graph) {
  const auto [known, added] = plans_.insert_or_assign(plan.get(), std::make_pair(plan, graph));
  if (!added) return;
  recent_.push_back(plan.get());
  if (recent_.size() > kKnownPlans) {
    plans_.erase(recent_.front());
    recent_.pop_front();
  }
}

}  // namespace trireme::internal
