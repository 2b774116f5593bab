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

// Puts a GraphData together, value by value and node by node.
class GraphBuilder {
 public:
  explicit GraphBuilder(const std::string& name);

  uint32_t add_value(proto::Value::Source source, uint32_t index, const at::Tensor& tensor);
  // The tensor is kept, not copied.
  uint32_t add_constant(const at::Tensor& contents, bool wrapped_number);

  // A node that comes after all others so far. Its index is nodes() before the call.
  proto::Node* add_node(const std::string& op);
  // Takes back the newest node, which must have made no value.
  void drop_last_node();
  int nodes() const { return graph_->def.nodes_size(); }
  const proto::GraphDef& def() const { return graph_->def; }

  // 1 + the number of the scope of that name; 0 for none.
  uint32_t scope(const std::string& name);

  proto::GraphDef& mutable_def() { return graph_->def; }

  // Drops nodes that nobody can tell from absent ones: they write nothing, draw no random number,
  // and no one uses their results. Renumbers values and nodes.
  std::shared_ptr<GraphData> finish();

 private:
  std::vector<bool> needed_nodes() const;

  std::shared_ptr<GraphData> graph_;
  std::unordered_map<std::string, uint32_t> scopes_;
};

// The values that an argument names, or a result makes; those that are none are left out.
void for_each_value(const proto::Argument& argument, const std::function<void(int64_t)>& visit);

void set_type(const at::Tensor& tensor, proto::TensorType* type);

}  // namespace trireme::internal
