#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/graph/graph.pb.h"
#include "trireme/ps/variable_uses.h"

namespace trireme::internal {

// A node that makes the gradient of a table from rows.
struct RowSource {
  int64_t table = -1;     // value that is the gradient of the table
  int64_t ids = -1;       // value with the ids
  int64_t gradient = -1;  // value with one row for each id, or one for each bag of ids
  int64_t no_row = -1;    // id that has no gradient
  int zeros = -1;         // node that makes the zeros to which the rows are added, or -1
  bool is_bag = false;    // true for embedding_bag
  bool supported = true;  // false if the gradient is not the sum of these rows
};

// Finds the table gradients of a step, which are the tensors that are zero except for the rows of a
// table that the step looked up, and decides which of them can be computed by rows. Immutable. The
// graph and the uses must outlive it.
class TableGradients {
 public:
  TableGradients(const proto::GraphDef& def, const VariableUses& uses);

  // Returns the number of the table gradient that a value is, if it can be computed by rows, or -1.
  // Values with the same memory are the same table gradient.
  int rows_of(int64_t id) const;
  // Returns the source that a node is; nullopt for other nodes.
  std::optional<RowSource> source_of(int index) const;
  // Returns the node because of which a gradient cannot be computed by rows. Returns the number of
  // nodes if the step returns the gradient, and -1 if it comes from outside of the step.
  int obstacle(int64_t gradient) const;

 private:
  // A table gradient. The fields after `parent` hold for all that are joined with it, and are kept
  // at the root of their tree.
  struct Table {
    int parent;
    int size = 1;         // number of tables in the tree
    int obstacle = -1;    // first node that needs all rows; -1 for none
    bool pushed = false;  // true if one of the gradients is pushed to its variable
  };

  const proto::TensorType& type(int64_t id) const {
    return def_.values(static_cast<int>(id)).type();
  }
  bool has_row_for_each_id(const RowSource& source) const;
  void note_node(int index);
  void note_results(int index);
  void note_push(int index, int table);

  int add_table(int64_t id);
  int root(int table) const;
  void join(int a, int b);
  void break_rows(int table, int node);

  const proto::GraphDef& def_;
  const VariableUses& uses_;
  std::vector<int> table_of_;  // table gradient of each value, or -1
  std::vector<Table> tables_;
};

}  // namespace trireme::internal
