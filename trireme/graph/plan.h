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

// A graph as data: the protobuf and the tensors that it names but does not hold.
struct GraphData {
  proto::GraphDef def;
  std::vector<at::Tensor> constants;
};

struct NodePlan {
  c10::OperatorHandle op;
  std::vector<ArgumentPlan> arguments;
  // The values made, in the order of the returns; -1 for what nobody uses. A return that is a
  // list has its own entry in `lists`.
  struct Result {
    int64_t value = -1;
    bool is_list = false;
    std::vector<int64_t> list;
  };
  std::vector<Result> results;
  std::vector<uint32_t> free_after;  // values not needed past this node that no argument takes
  std::vector<int> aliased;          // arguments that run on an alias (Node.reshapes)
  bool random = false;
  bool has_generator = false;
  bool writes = false;               // to an argument
  bool makes_uninitialized = false;  // its results have no contents yet
  CallRules rules;
  // Of a part of a graph: which receives it is the first to need.
  std::vector<uint32_t> receives;
  // Variables whose memory it touches, and whether it writes it.
  std::vector<std::pair<uint32_t, bool>> variables;
};

// A value, or the generator's state, that goes to another task.
struct SendPlan {
  uint32_t index = 0;  // in GraphDef.sends
  int64_t value = -1;
  uint32_t after = 0;  // how many nodes run before it
  bool last_use = false;
  // Its memory may change while it is on its way: it shares it with what somebody writes.
  bool copied = false;
  int64_t variable = -1;  // whose memory it shares
};

// A graph that has been checked against the operators' schemas, ready to run. Immutable, so that
// many runs may share it.
struct Plan {
  std::shared_ptr<const GraphData> graph;
  std::vector<NodePlan> nodes;
  std::vector<int64_t> input_values;     // per input, the value; -1 where no node uses it
  std::vector<int64_t> constant_values;  // likewise
  std::vector<int64_t> variable_values;
  std::vector<bool> constant_written;  // such a constant is copied for each run
  std::vector<bool> variable_written;
  std::vector<bool> output_copied;        // shares memory with a constant, a variable or an input
  std::vector<int64_t> output_variables;  // whose memory each output shares; -1 for none
  std::vector<int64_t> received_values;   // per receive, the value; -1 for the generator's state
  std::vector<uint32_t>
      storages;                 // per value, a number that all values which may share memory have
  std::vector<SendPlan> sends;  // by `after`
};

// Checks everything that a file or a peer may have got wrong: operators, argument types, order,
// numbers out of range. The error names the node, the operator and the argument.
absl::StatusOr<std::shared_ptr<const Plan>> compile(std::shared_ptr<const GraphData> graph);

}  // namespace trireme::internal
