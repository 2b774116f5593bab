#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/graph/plan.h"

namespace trireme::internal {

// Builds a graph for the devices of one process. Numbers are those of the new graph. Replica -1
// stands for none. Not thread-safe.
class DeviceGraphBuilder {
 public:
  // Copies everything that does not depend on devices: the name, the number of inputs, the
  // receives.
  explicit DeviceGraphBuilder(const proto::GraphDef& from);

  // Adds a value and returns its number.
  uint32_t add_value(proto::Value::Source source, uint32_t index, const proto::TensorType& type);
  // Adds a constant with these contents, and returns the number of its value.
  uint32_t add_constant(at::Tensor contents, const proto::Constant& described);

  // Appends a node.
  void append(proto::Node node);
  // Appends a node with one result of this type, and returns the result's number.
  uint32_t append_with_result(proto::Node node, const proto::TensorType& type);

  // Append an operator on values of one device, and return the number of its result.
  uint32_t clone(uint32_t value, int replica);
  uint32_t mean(const std::vector<uint32_t>& values, const proto::TensorType& type);
  // Appends `target.copy_(source)`.
  void assign(uint32_t target, uint32_t source);
  // Appends a move to a device, and returns the number of the moved value. The host does not wait,
  // unless the CPU is the target and so reads the value next.
  uint32_t move(uint32_t value, c10::Device device, int replica);

  // Appends nodes that join the elements of dense values of one dtype in one value, and
  // returns its number.
  uint32_t pack(const std::vector<uint32_t>& values, int replica);
  // Appends nodes that take apart what pack() of these values made, and returns the numbers of the
  // parts.
  std::vector<uint32_t> unpack(uint32_t packed, const std::vector<uint32_t>& values, int replica);

  proto::GraphDef& def() { return graph_->def; }
  uint32_t nodes() const { return static_cast<uint32_t>(graph_->def.nodes_size()); }
  // Returns the graph. The builder must not be used afterwards.
  std::shared_ptr<const GraphData> finish() { return std::move(graph_); }

 private:
  // Appends a view of all elements of a dense value with the sizes and strides of a type.
  uint32_t view_as(uint32_t value, const proto::TensorType& type, int replica);

  std::shared_ptr<GraphData> graph_;
};

}  // namespace trireme::internal
