#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/base/lru_map.h"
#include "trireme/base/mutex.h"
#include "trireme/capture/function_step.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/graph/graph_file.h"
#include "trireme/graph/plan.h"
#include "trireme/runtime/session.pb.h"

namespace trireme::internal {

// A graph that is registered with the master and whose variables exist.
struct KnownGraph {
  uint64_t graph = 0;  // its number in the session
  std::shared_ptr<const Plan> plan;
  std::vector<std::weak_ptr<VariableRecord>> variables;  // in the order of the graph
  Fingerprint content;
  RegisterGraphResponse registered;
  bool small_answer = false;  // true if the outputs are small enough to be sent without a stream
};

// The graphs that a session has registered with its master. They are found by the address of their
// plan, which is fast, or by their content: a function that is captured again has another plan with
// the same content.
//
// Keeps the graphs that were used last. The master does the same on its side, and may evict a graph
// that is known here: it then answers that it does not know the graph (session.proto). Thread-safe.
class SessionGraphs {
 public:
  // Maximum number of plans, and of graphs, that are kept.
  static constexpr size_t kMostGraphs = 256;

  // Returns the number for the next graph to register.
  uint64_t next_number();
  // Adds a registered graph.
  void add(const std::shared_ptr<const KnownGraph>& graph);

  // Returns the graph of a plan; null if it is not known.
  std::shared_ptr<const KnownGraph> find(const Plan* plan);
  // Returns the graph with the same content and the same variables as a step whose plan is not
  // known yet. The plan becomes known as one of that graph. Returns null if there is none.
  std::shared_ptr<const KnownGraph> find_same(const FunctionStep& step, const Fingerprint& content);

  // Forgets all graphs.
  void clear();

 private:
  using GraphPtr = std::shared_ptr<const KnownGraph>;

  // Adds a plan of the graph.
  void add_plan(const std::shared_ptr<const Plan>& plan, const GraphPtr& graph)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  // Holds the plans too, so that no other plan can get the address of one.
  LruMap<const Plan*, std::pair<std::shared_ptr<const Plan>, GraphPtr>> plans_
      ABSL_GUARDED_BY(mutex_);
  LruMap<Fingerprint, GraphPtr> contents_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
