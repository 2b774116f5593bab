#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/graph/plan.h"

namespace trireme::internal {

// Builds a GraphData value by value and node by node. Not thread-safe.
class GraphBuilder {
 public:
  explicit GraphBuilder(const std::string& name);

  // Adds a value with the tensor's type and returns its number. `index` says which input, constant
  // or variable it is, and is not used for results.
  uint32_t add_value(proto::Value::Source source, uint32_t index, const at::Tensor& tensor);
  // Adds a constant and returns the number of its value. Keeps the tensor without copying it.
  // `wrapped_number` is true for a C++ number, which does not decide the dtype of results.
  uint32_t add_constant(const at::Tensor& contents, bool wrapped_number);

  // Appends a node. Its index is what nodes() returned before the call.
  proto::Node* add_node(const std::string& op);
  // Removes the last node, which must not have made a value.
  void drop_last_node();
  int nodes() const { return graph_->def.nodes_size(); }
  const proto::GraphDef& def() const { return graph_->def; }

  // Returns 1 + the index of the scope with this name, adding it if it is new; 0 for "".
  uint32_t scope(const std::string& name);

  proto::GraphDef& mutable_def() { return graph_->def; }

  // Returns the graph without the nodes that have no effect: they write nothing, draw no random
  // number, and their results are not used. Renumbers values and nodes. The builder must not be
  // used afterwards.
  std::shared_ptr<GraphData> finish();

 private:
  // Returns true for each node that finish() keeps.
  std::vector<bool> needed_nodes() const;

  std::shared_ptr<GraphData> graph_;
  std::unordered_map<std::string, uint32_t> scopes_;  // name to 1 + index
};

// Calls `visit` with each value that an argument or a result names. Skips undefined tensors.
void for_each_value(const proto::Argument& argument, const std::function<void(int64_t)>& visit);

// Sets `type` to the dtype, sizes and strides of `tensor`.
void set_type(const at::Tensor& tensor, proto::TensorType* type);

// Returns the number of elements of a tensor of this type.
int64_t element_count(const proto::TensorType& type);

}  // namespace trireme::internal
