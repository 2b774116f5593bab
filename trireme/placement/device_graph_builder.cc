#include "trireme/placement/device_graph_builder.h"

#include <utility>

#include "trireme/graph/graph_builder.h"

namespace trireme::internal {
namespace {

// Returns a node whose first arguments are these values.
proto::Node node_of(const char* op, const std::vector<uint32_t>& values, int replica) {
  proto::Node node;
  node.set_op(op);
  node.set_replica(static_cast<uint32_t>(replica + 1));
  for (uint32_t value : values) node.add_arguments()->set_value(value);
  return node;
}

proto::TensorType flat_type(int32_t dtype, int64_t elements) {
  proto::TensorType type;
  type.set_dtype(dtype);
  type.add_sizes(elements);
  type.add_strides(1);
  return type;
}

}  // namespace

DeviceGraphBuilder::DeviceGraphBuilder(const proto::GraphDef& from)
    : graph_(std::make_shared<GraphData>()) {
  def().set_name(from.name());
  def().set_format(from.format());
  def().set_torch_version(from.torch_version());
  def().set_inputs(from.inputs());
  def().set_random(from.random());
  def().set_default_dtype(from.default_dtype());
  *def().mutable_scopes() = from.scopes();
  *def().mutable_receives() = from.receives();
}

uint32_t DeviceGraphBuilder::add_value(proto::Value::Source source, uint32_t index,
                                       const proto::TensorType& type) {
  const uint32_t number = def().values_size();
  proto::Value* value = def().add_values();
  value->set_source(source);
  value->set_index(index);
  *value->mutable_type() = type;
  return number;
}

uint32_t DeviceGraphBuilder::add_constant(at::Tensor contents, const proto::Constant& described) {
  graph_->constants.push_back(std::move(contents));
  *def().add_constants() = described;
  return add_value(proto::Value::CONSTANT, static_cast<uint32_t>(graph_->constants.size() - 1),
                   described.type());
}

void DeviceGraphBuilder::append(proto::Node node) {
  *def().add_nodes() = std::move(node);
}

uint32_t DeviceGraphBuilder::append_with_result(proto::Node node, const proto::TensorType& type) {
  const uint32_t number = add_value(proto::Value::RESULT, 0, type);
  node.clear_results();
  node.add_results()->set_value(number);
  append(std::move(node));
  return number;
}

uint32_t DeviceGraphBuilder::clone(uint32_t value, int replica) {
  proto::Node node = node_of("aten::clone", {value}, replica);
  node.add_arguments()->set_none(true);  // memory_format
  return append_with_result(std::move(node), proto::TensorType(def().values(value).type()));
}

uint32_t DeviceGraphBuilder::mean(const std::vector<uint32_t>& values,
                                  const proto::TensorType& type) {
  uint32_t result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    proto::Node sum = node_of("aten::add.Tensor", {result, values[i]}, -1);
    sum.add_arguments()->set_integer(1);  // alpha
    result = append_with_result(std::move(sum), type);
  }
  proto::Node mean = node_of("aten::div.Scalar", {result}, -1);
  mean.add_arguments()->set_integer(static_cast<int64_t>(values.size()));
  return append_with_result(std::move(mean), type);
}

void DeviceGraphBuilder::assign(uint32_t target, uint32_t source) {
  proto::Node node = node_of("aten::copy_", {target, source}, -1);
  node.add_arguments()->set_boolean(true);  // non_blocking
  node.add_results()->set_none(true);
  append(std::move(node));
}

uint32_t DeviceGraphBuilder::move(uint32_t value, c10::Device device, int replica) {
  proto::Node node = node_of("aten::_to_copy", {value}, replica);
  node.add_arguments()->set_none(true);                 // dtype
  node.add_arguments()->set_none(true);                 // layout
  node.add_arguments()->set_device(device.str());       // device
  node.add_arguments()->set_none(true);                 // pin_memory
  node.add_arguments()->set_boolean(!device.is_cpu());  // non_blocking
  node.add_arguments()->set_none(true);                 // memory_format
  return append_with_result(std::move(node), proto::TensorType(def().values(value).type()));
}

uint32_t DeviceGraphBuilder::view_as(uint32_t value, const proto::TensorType& type, int replica) {
  proto::Node view = node_of("aten::as_strided", {value}, replica);
  *view.add_arguments()->mutable_integers()->mutable_items() = type.sizes();
  *view.add_arguments()->mutable_integers()->mutable_items() = type.strides();
  view.add_arguments()->set_none(true);  // storage_offset: where the value begins
  return append_with_result(std::move(view), type);
}

uint32_t DeviceGraphBuilder::pack(const std::vector<uint32_t>& values, int replica) {
  proto::Node join = node_of("aten::cat", {}, replica);
  proto::Argument* flat = join.add_arguments();
  join.add_arguments()->set_integer(0);  // dim
  int64_t all = 0;
  const int32_t dtype = def().values(values[0]).type().dtype();
  for (uint32_t value : values) {
    const int64_t elements = element_count(def().values(value).type());
    flat->mutable_values()->add_ids(view_as(value, flat_type(dtype, elements), replica));
    all += elements;
  }
  return append_with_result(std::move(join), flat_type(dtype, all));
}

std::vector<uint32_t> DeviceGraphBuilder::unpack(uint32_t packed,
                                                 const std::vector<uint32_t>& values, int replica) {
  proto::Node split = node_of("aten::split_with_sizes", {packed}, replica);
  proto::Integers* sizes = split.add_arguments()->mutable_integers();
  split.add_arguments()->set_integer(0);  // dim
  proto::Argument* flat = split.add_results();
  for (uint32_t value : values) {
    const proto::TensorType type = def().values(value).type();
    sizes->add_items(element_count(type));
    flat->mutable_values()->add_ids(
        add_value(proto::Value::RESULT, 0, flat_type(type.dtype(), element_count(type))));
  }
  const proto::Values numbers = flat->values();
  append(std::move(split));
  std::vector<uint32_t> parts;
  for (size_t i = 0; i < values.size(); ++i) {
    const proto::TensorType type = def().values(values[i]).type();
    const auto number = static_cast<uint32_t>(numbers.ids(static_cast<int>(i)));
    parts.push_back(view_as(number, type, replica));
  }
  return parts;
}

}  // namespace trireme::internal
