#include "trireme/graph/graph_builder.h"

#include <torch/version.h>

#include "trireme/base/status.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

// Replaces the values in an argument by their new numbers. A new number of -1 turns the argument
// into none.
void renumber(proto::Argument& argument, const std::vector<int64_t>& numbers) {
  if (argument.kind_case() == proto::Argument::kValue) {
    const int64_t number = numbers[argument.value()];
    number < 0 ? argument.set_none(true) : argument.set_value(static_cast<uint32_t>(number));
  } else if (argument.has_values()) {
    for (int64_t& value : *argument.mutable_values()->mutable_ids()) {
      if (value >= 0) value = numbers[value];
    }
  }
}

}  // namespace

void for_each_value(const proto::Argument& argument, const std::function<void(int64_t)>& visit) {
  if (argument.kind_case() == proto::Argument::kValue) visit(argument.value());
  if (argument.has_values()) {
    for (int64_t value : argument.values().ids()) {
      if (value >= 0) visit(value);
    }
  }
}

int64_t element_count(const proto::TensorType& type) {
  int64_t count = 1;
  for (int64_t size : type.sizes()) count *= size;
  return count;
}

GraphBuilder::GraphBuilder(const std::string& name) : graph_(std::make_shared<GraphData>()) {
  graph_->def.set_name(name);
  graph_->def.set_format(1);
  graph_->def.set_torch_version(TORCH_VERSION);
}

uint32_t GraphBuilder::add_value(proto::Value::Source source, uint32_t index,
                                 const at::Tensor& tensor) {
  const uint32_t number = graph_->def.values_size();
  proto::Value* value = graph_->def.add_values();
  value->set_source(source);
  value->set_index(index);
  set_type(tensor, value->mutable_type());
  return number;
}

uint32_t GraphBuilder::add_constant(const at::Tensor& contents, bool wrapped_number) {
  const uint32_t index = graph_->constants.size();
  if (wrapped_number) contents.unsafeGetTensorImpl()->set_wrapped_number(true);
  graph_->constants.push_back(contents);
  proto::Constant* constant = graph_->def.add_constants();
  constant->set_wrapped_number(wrapped_number);
  set_type(contents, constant->mutable_type());
  return add_value(proto::Value::CONSTANT, index, contents);
}

proto::Node* GraphBuilder::add_node(const std::string& op) {
  proto::Node* node = graph_->def.add_nodes();
  node->set_op(op);
  return node;
}

void GraphBuilder::drop_last_node() {
  graph_->def.mutable_nodes()->RemoveLast();
}

uint32_t GraphBuilder::scope(const std::string& name) {
  if (name.empty()) return 0;
  const auto [found, added] = scopes_.try_emplace(name, scopes_.size() + 1);
  if (added) graph_->def.add_scopes(name);
  return found->second;
}

// Copies the needed nodes and values to a new GraphDef, in their order, and replaces every number
// by its new one. Numbers of dropped values become -1 or none.
std::shared_ptr<GraphData> GraphBuilder::finish() {
  proto::GraphDef& def = graph_->def;
  const std::vector<bool> needed = needed_nodes();
  // A value is kept if a kept node or an output names it. This drops the results of dropped nodes,
  // and the constants and inputs that only those nodes used.
  std::vector<bool> used(def.values_size(), false);
  for (int i = 0; i < def.nodes_size(); ++i) {
    if (!needed[i]) continue;
    if (def.nodes(i).colocated_with() > 0) used[def.nodes(i).colocated_with() - 1] = true;
    for (const auto& argument : def.nodes(i).arguments()) {
      for_each_value(argument, [&](int64_t value) { used[value] = true; });
    }
    for (const auto& result : def.nodes(i).results()) {
      for_each_value(result, [&](int64_t value) { used[value] = true; });
    }
  }
  for (int64_t output : def.outputs()) {
    if (output >= 0) used[output] = true;
  }
  proto::GraphDef out;
  out.set_name(def.name());
  out.set_format(def.format());
  out.set_torch_version(def.torch_version());
  out.set_inputs(def.inputs());
  out.set_default_dtype(def.default_dtype());
  *out.mutable_variables() = def.variables();
  *out.mutable_scopes() = def.scopes();
  std::vector<int64_t> numbers(def.values_size(), -1), nodes(def.nodes_size() + 1, 0);
  std::vector<at::Tensor> constants;
  for (int i = 0; i < def.values_size(); ++i) {
    const proto::Value& value = def.values(i);
    // Variables stay even if nothing uses them: the caller binds them by the capture's numbers.
    if (!used[i] && value.source() != proto::Value::VARIABLE) continue;
    const uint32_t number = out.values_size();
    numbers[i] = number;
    proto::Value* kept = out.add_values();
    *kept = value;
    if (value.source() == proto::Value::CONSTANT) {
      kept->set_index(constants.size());
      *out.add_constants() = def.constants(value.index());
      constants.push_back(graph_->constants[value.index()]);
    }
  }
  for (int i = 0; i < def.nodes_size(); ++i) {
    if (!needed[i]) continue;
    proto::Node* node = out.add_nodes();
    *node = std::move(*def.mutable_nodes(i));
    nodes[i + 1] = out.nodes_size();
    node->set_differentiates(nodes[node->differentiates()]);
    if (node->colocated_with() > 0) {
      node->set_colocated_with(static_cast<uint32_t>(numbers[node->colocated_with() - 1] + 1));
    }
    for (auto& argument : *node->mutable_arguments()) renumber(argument, numbers);
    for (auto& result : *node->mutable_results()) renumber(result, numbers);
    const auto op = find_allowed_operator(node->op());
    if (op.ok() && is_random(*op)) out.set_random(true);
  }
  for (int64_t output : def.outputs()) out.add_outputs(output < 0 ? -1 : numbers[output]);
  graph_->def = std::move(out);
  graph_->constants = std::move(constants);
  return std::move(graph_);
}

// Visits the nodes from the last to the first, so that the uses of a result are known before the
// node that made it.
std::vector<bool> GraphBuilder::needed_nodes() const {
  const proto::GraphDef& def = graph_->def;
  std::vector<bool> needed(def.nodes_size(), false), used(def.values_size(), false);
  for (int64_t output : def.outputs()) {
    if (output >= 0) used[output] = true;
  }
  for (int i = def.nodes_size() - 1; i >= 0; --i) {
    const proto::Node& node = def.nodes(i);
    const auto op = find_allowed_operator(node.op());
    // A node is kept for its effect if it writes to an argument, if it returns nothing (then it
    // only checks something), or if it draws random numbers: later draws must not change.
    bool keep = !op.ok() || is_random(*op) || !writable_arguments(*op).empty() ||
                op->schema().returns().empty();
    for (const auto& result : node.results()) {
      for_each_value(result, [&](int64_t value) { keep |= used[value]; });
    }
    needed[i] = keep;
    if (!keep) continue;
    for (const auto& argument : node.arguments()) {
      for_each_value(argument, [&](int64_t value) { used[value] = true; });
    }
  }
  return needed;
}

void set_type(const at::Tensor& tensor, proto::TensorType* type) {
  type->set_dtype(static_cast<int>(tensor.scalar_type()));
  for (int64_t size : tensor.sizes()) type->add_sizes(size);
  if (tensor.is_sparse()) {
    type->set_sparse(true);
  } else {
    for (int64_t stride : tensor.strides()) type->add_strides(stride);
  }
}

}  // namespace trireme::internal
