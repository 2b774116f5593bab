#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/graph/graph.pb.h"
#include "trireme/graph/plan.h"
#include "trireme/ps/variable_uses.h"

namespace trireme::internal {

// The gradients of a step that are zero except for the rows of a table that the step looked up, and
// the nodes that compute these rows in place of the whole gradients. Plain data.
struct RowGradients {
  // Some rows of a table, in two values of the rewritten graph. An id may occur several times; the
  // row of the table is the sum then.
  struct Rows {
    int64_t ids = -1;     // value with the row ids
    int64_t rows = -1;    // value with one row for each id
    int64_t no_row = -1;  // id of entries that do not count; -1 for none
  };

  // Rows that nodes push, by the number of the node. Several entries add up.
  std::map<int, std::vector<Rows>> pushed;
  // Nodes that run in place of a node of the step, by its number.
  std::map<int, std::vector<proto::Node>> replaced;
  // Values that the replacements make, numbered from the last value of the step's graph on. They
  // are never written to.
  std::vector<proto::Value> values;
  // For each node that pushes a whole gradient: the node because of which its rows are not known.
  // The number of nodes if the step returns the gradient, -1 if it comes from outside of the step.
  std::map<int, int> obstacles;
};

// Finds the gradients of a step that can be computed by rows.
RowGradients find_row_gradients(const Plan& plan, const VariableUses& uses);

}  // namespace trireme::internal
