#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/cluster/task_id.h"
#include "trireme/graph/plan.h"
#include "trireme/placement/placer.h"

// Cuts a placed graph into one part per task, with a Send and a Receive for each value that one
// task makes and another one uses.
//
// A value is transferred once to each task that uses it, with the contents that it has at that
// point of the captured order. If its memory is written later, it is transferred again to the tasks
// that read it after the write. A view of all elements is not transferred: the value that it views
// is, and the receiving task makes the view again. The state of the step's generator is transferred
// as well, so that random numbers do not depend on the placement.
namespace trireme::internal {

// The part of a graph that one task runs.
struct GraphPart {
  TaskId task;
  std::shared_ptr<const GraphData> graph;
  std::vector<uint32_t> inputs;   // for each input of the part, its index among the step's inputs
  std::vector<uint32_t> outputs;  // for each output of the part, its index among the step's outputs
  // True if the outputs and the values that the part sends have at most kSmallAnswer bytes, so that
  // its answer to the master fits into one frame.
  bool small_answer = false;
  std::vector<uint32_t> variables;  // for each variable of the part, its index in the whole graph
};

// Returns the number of bytes of these values by the types that the graph declares; UINT64_MAX if
// one of them is sparse, since its size is not known.
uint64_t bytes_of(const proto::GraphDef& def, const std::vector<int64_t>& values);
// Largest answer in bytes that is returned in one frame instead of being streamed. Leaves room for
// the headers within the limit of a frame (rpc/frame.h).
inline constexpr uint64_t kSmallAnswer = 2 << 20;

// Returns a part for each task that has something to do. If the master has one, it comes first.
std::vector<GraphPart> cut(const PlacedGraph& placed, const TaskId& master);

}  // namespace trireme::internal
