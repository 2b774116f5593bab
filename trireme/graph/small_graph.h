#pragma once

#include <ATen/ops/full.h>
#include <torch/version.h>

#include <memory>

#include "trireme/graph/plan.h"

namespace trireme::internal {

// Returns the graph y = relu(x + 2 * c), built by hand. For tests, some of which then corrupt it.
inline GraphData small_graph() {
  GraphData data;
  proto::GraphDef& def = data.def;
  def.set_name("small");
  def.set_format(1);
  def.set_torch_version(TORCH_VERSION);
  def.set_inputs(1);
  const auto add_value = [&](proto::Value::Source source) {
    proto::Value* value = def.add_values();
    value->set_source(source);
    value->mutable_type()->set_dtype(static_cast<int>(at::kFloat));
    value->mutable_type()->add_sizes(2);
    value->mutable_type()->add_strides(1);
  };
  add_value(proto::Value::INPUT);
  add_value(proto::Value::CONSTANT);
  add_value(proto::Value::RESULT);
  add_value(proto::Value::RESULT);
  *def.add_constants()->mutable_type() = def.values(1).type();
  data.constants.push_back(at::full({2}, 3.0f));
  proto::Node* sum = def.add_nodes();
  sum->set_op("aten::add.Tensor");
  sum->add_arguments()->set_value(0);
  sum->add_arguments()->set_value(1);
  sum->add_arguments()->set_number(2);
  sum->add_results()->set_value(2);
  proto::Node* relu = def.add_nodes();
  relu->set_op("aten::relu");
  relu->add_arguments()->set_value(2);
  relu->add_results()->set_value(3);
  def.add_outputs(3);
  return data;
}

// Compiles a copy of `data`, which may be changed and compiled again.
inline absl::StatusOr<std::shared_ptr<const Plan>> compile_copy(const GraphData& data) {
  return compile(std::make_shared<GraphData>(data));
}

}  // namespace trireme::internal
