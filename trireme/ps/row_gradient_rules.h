#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "trireme/graph/graph.pb.h"

namespace trireme::internal {

// Says what the operators of a graph do to a table gradient: a tensor that is zero except for the
// rows that a step looked up. An operator that maps zero to zero, element by element, gives the
// same result on a tensor that holds only these rows.
struct RowRule {
  enum class Effect {
    kBreaks,   // needs all rows, or makes other rows than these different from zero
    kSame,     // returns the tensor itself
    kEach,     // computes each element from the one in its place, and zero from zero
    kSum,      // adds or subtracts two table gradients
    kReduces,  // computes numbers that zeros do not change
    kPushes,   // passes it to the optimizer of a variable
  };

  Effect effect = Effect::kBreaks;
  // Operator that does the same without writing to an argument.
  std::string op;
  // True if the node's own operator writes its result to its first argument.
  bool in_place = false;
};

// Returns a number for a value that is a table gradient, the same for two values with the same
// memory, and -1 for any other value.
using TableOf = std::function<int(int64_t value)>;

// Returns the effect of a node on the table gradients among its arguments. It must have one.
RowRule row_rule(const proto::GraphDef& def, const proto::Node& node, const TableOf& table_of);

}  // namespace trireme::internal
