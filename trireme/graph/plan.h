#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/graph/argument.h"
#include "trireme/graph/call_rules.h"
#include "trireme/graph/graph.pb.h"

namespace trireme::internal {

// A graph as data: the protobuf, and the constant tensors that it describes but does not contain.
struct GraphData {
  proto::GraphDef def;
  std::vector<at::Tensor> constants;
};

// One operator call of a plan. Values are named by their number in GraphDef.values.
struct NodePlan {
  c10::OperatorHandle op;
  std::vector<ArgumentPlan> arguments;  // in the order of the schema
  // One result of the operator. A tensor is stored in `value`, a list of tensors in `list`; -1
  // stands for a tensor that nothing uses.
  struct Result {
    int64_t value = -1;
    bool is_list = false;
    std::vector<int64_t> list;
  };
  std::vector<Result> results;  // in the order of the schema's returns
  // Values to release after this node: it is their last use, and no argument has `last_use` for
  // them.
  std::vector<uint32_t> free_after;
  std::vector<int> aliased;          // positions of arguments passed as an alias (Node.reshapes)
  bool random = false;               // true if the operator draws random numbers
  bool has_generator = false;        // true if it gets the step's generator as an argument
  bool writes = false;               // true if it may write to an argument
  bool makes_uninitialized = false;  // true if its results have no contents yet
  // True if it copies a tensor to a device that it names (aten::_to_copy).
  bool moves = false;
  CallRules rules;
  // Receives (GraphDef.receives) that must have arrived before this node and that no earlier node
  // waits for. Empty unless the graph is one task's part.
  std::vector<uint32_t> receives;
  // Variables whose memory the operator touches; the flag is true if it may write to it.
  std::vector<std::pair<uint32_t, bool>> variables;
};

// A transfer of a value, or of the generator's state, to another task.
struct SendPlan {
  uint32_t index = 0;     // index into GraphDef.sends
  int64_t value = -1;     // the value to send; -1 for the generator's state
  uint32_t after = 0;     // number of nodes that run before the send
  bool last_use = false;  // true if the value is released once it is sent
  // True if the value is copied before it is sent, because an operator or another step may write
  // to its memory while it is in flight.
  bool copied = false;
  int64_t variable = -1;  // the variable whose memory the value may share; -1 for none
};

// A graph that has been checked against the operators' schemas and is ready to run. Immutable, so
// that many runs may share it.
struct Plan {
  std::shared_ptr<const GraphData> graph;
  std::vector<NodePlan> nodes;            // in captured order
  std::vector<int64_t> input_values;      // the value of each input; -1 if no value stands for it
  std::vector<int64_t> constant_values;   // the value of each constant, or -1
  std::vector<int64_t> variable_values;   // the value of each variable, or -1
  std::vector<bool> constant_written;     // true for a constant that each run has to copy
  std::vector<bool> variable_written;     // true for a variable that some node may write to
  std::vector<bool> output_copied;        // true if it may share a constant's or variable's memory
  std::vector<int64_t> output_variables;  // the variable whose memory each output may share, or -1
  std::vector<int64_t> received_values;   // the value of each receive; -1 for the generator's state
  // The storage of each value: two values have the same number if they may share memory.
  std::vector<uint32_t> storages;
  std::vector<SendPlan> sends;  // sorted by `after`
  bool has_moves = false;       // true if some node may copy a tensor to an accelerator
};

// Compiles a graph into a plan. Checks everything that a file or a peer may have got wrong:
// operators, argument types, the order of nodes, numbers out of range. The error names the node,
// the operator and the argument at fault.
absl::StatusOr<std::shared_ptr<const Plan>> compile(std::shared_ptr<const GraphData> graph);

}  // namespace trireme::internal
