#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "trireme/graph/graph.pb.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// Finds out how the nodes of a step use the variables that live on parameter servers, and answers
// questions about the order of reads and writes. Immutable. The plan and `on_servers` must outlive
// it.
class VariableUses {
 public:
  enum class Use {
    kRead,      // reads the contents
    kReadRows,  // reads only the rows with some ids
    kAdd,       // adds another tensor, independent of the contents
    kAssign,    // overwrites with another tensor, independent of the contents
    kGradient,  // passes a gradient to the variable's optimizer
    kWrite,     // writes in any other way; may read too
  };
  // One use of a variable by one node.
  struct Touch {
    int node;  // number of the node; one past the last if the step returns the variable
    Use use;
  };

  // on_servers[i] is true if variable i of the plan lives on the servers.
  VariableUses(const Plan& plan, const std::vector<bool>& on_servers);

  // Returns the uses of a variable that lives on servers, in the order of the nodes.
  const std::vector<Touch>& touches(uint32_t variable) const { return touches_[variable]; }

  const proto::Node& node(int index) const { return def_.nodes(index); }
  bool is_op(int index, const char* name) const { return node(index).op() == name; }
  // Returns the id of the value that a node has as an argument, or -1 if the argument is not a
  // value.
  int64_t argument(int index, int position) const;
  // Returns the id of the value that a node makes as a result, or -1 if the result is not a value.
  int64_t result(int index, int position) const;
  // Returns the factor by which an addition or subtraction multiplies the tensor that it adds.
  double scale(int index) const;
  // Returns true if the value has the dtype and the shape of the variable.
  bool has_type_of(int64_t id, uint32_t variable) const;
  // Returns the node that makes a value, or -1 if it comes from outside of the step.
  int maker(int64_t id) const { return makers_[id]; }
  // Returns the nodes that use a value, in order.
  const std::vector<int>& users(int64_t id) const { return users_[id]; }

  // Returns the value with the row ids, if the node reads rows of a table, or -1 for other nodes.
  int64_t row_ids(int index) const;
  // Returns the position of the row ids among the arguments of a node that reads rows.
  static int row_ids_position(const proto::Node& node);
  // Returns the position of the id that a node which reads rows leaves out, or -1 if its operator
  // leaves out no rows.
  static int padding_position(const proto::Node& node);

  // Collects the nodes that compute a value. Returns true if they can run before the pull: they do
  // not depend on variables of the servers, write nothing and draw no random numbers.
  bool runs_before_pull(int64_t id, std::set<int>& nodes) const;
  // Returns true if the memory of a value is written by this node or a later one.
  bool is_written_from(int64_t id, int index) const;

 private:
  const proto::Value& value(int64_t id) const { return def_.values(static_cast<int>(id)); }
  const proto::TensorType& type_of(uint32_t variable) const;
  bool is_variable(int64_t id, uint32_t variable) const;
  Use use(int index, uint32_t variable, bool writes) const;

  const Plan& plan_;
  const proto::GraphDef& def_;
  const std::vector<bool>& on_servers_;

  std::vector<std::vector<Touch>> touches_;       // uses of each variable, in the order of nodes
  std::vector<int> makers_;                       // node that makes each value, or -1
  std::vector<std::vector<int>> users_;           // nodes that use each value
  std::map<uint32_t, std::vector<int>> writers_;  // nodes that write to each storage, in order
};

}  // namespace trireme::internal
