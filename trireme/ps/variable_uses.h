#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "trireme/graph/graph.pb.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// How the nodes of a step use the variables that live on parameter servers, and what follows from
// the order of reads and writes. Refers to the plan and to `on_servers`, which have to outlive it.
// Immutable.
class VariableUses {
 public:
  enum class Use {
    kRead,
    kReadRows,
    kAdd,       // of another tensor, without looking at the contents
    kAssign,    // likewise
    kGradient,  // given to the variable's optimizer
    kWrite,     // in any other way
  };
  struct Touch {
    int node;  // the number of nodes for a variable that the step returns
    Use use;
  };

  // `on_servers`: which of the plan's variables live there.
  VariableUses(const Plan& plan, const std::vector<bool>& on_servers);

  // Uses of a variable that lives on servers, in the order of the nodes.
  const std::vector<Touch>& touches(uint32_t variable) const { return touches_[variable]; }

  const proto::Node& node(int index) const { return def_.nodes(index); }
  bool is_op(int index, const char* name) const { return node(index).op() == name; }
  // Returns the value that the argument is, or -1 if it is none.
  int64_t argument(int index, int position) const;
  // Returns the factor of the tensor that an addition or subtraction adds.
  double scale(int index) const;

  // Returns the row ids of a node that reads rows of its first argument, or -1 for another node.
  int64_t row_ids(int index) const;
  // Returns the position of the argument with the ids of a node that reads rows.
  static int row_ids_position(const proto::Node& node);

  // Collects the nodes that make a value. Returns true if they can as well run before the pull:
  // they depend on no variable of the servers, write nothing and draw no random number.
  bool runs_before_pull(int64_t id, std::set<int>& nodes) const;
  // Collects the nodes that make a gradient. Returns true if it is an embedding's or a sum of such,
  // and if nothing else looks at it on the way.
  bool is_sum_of_rows(int64_t gradient, uint32_t variable, std::vector<int>& makers) const;
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

  std::vector<std::vector<Touch>> touches_;       // of each variable on servers, in order
  std::vector<int> makers_;                       // node that makes each value; -1: none does
  std::vector<std::vector<int>> users_;           // nodes that use each value
  std::map<uint32_t, std::vector<int>> writers_;  // of each storage that is written, in order
};

}  // namespace trireme::internal
