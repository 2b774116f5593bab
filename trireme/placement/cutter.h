#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/cluster/task_id.h"
#include "trireme/graph/plan.h"
#include "trireme/placement/placer.h"

// Cuts a placed graph along the borders of tasks, with a Send and a Receive on each cut edge.
//
// A value crosses once to each task that uses it, as it is at that point of the captured order:
// memory that is written later crosses again for those who read it after the write. A view crosses
// as what it views, and is taken anew on the other side. The step's generator is handed on as well,
// so that random numbers do not depend on the placement.
namespace trireme::internal {

struct GraphPart {
  TaskId task;
  std::shared_ptr<const GraphData> graph;
  std::vector<uint32_t> inputs;     // for each of its inputs, which of the step's it is
  std::vector<uint32_t> outputs;    // for each of its outputs, likewise
  bool small_answer = false;        // what it gives the master at its end fits one frame
  std::vector<uint32_t> variables;  // for each of its variables, which of the whole graph's it is
};

// How many bytes these values have, as the graph tells; sparse ones count as endless.
uint64_t bytes_of(const proto::GraphDef& def, const std::vector<int64_t>& values);
inline constexpr uint64_t kSmallAnswer = 2 << 20;

// One part for each task that has something to do, the master's first if it has.
std::vector<GraphPart> cut(const PlacedGraph& placed, const TaskId& master);

}  // namespace trireme::internal
