#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/error.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// The values of one run of a plan, and how one of its nodes is run on them. Who runs which node
// when is decided by its users: replay() runs a whole graph, a PartRun the part of one task.
class NodeRunner {
 public:
  NodeRunner(const Plan& plan, at::Generator generator);

  absl::Status bind(const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& variables);

  // Leaves the stack empty. In captured order, the last use of a value takes it out of the table.
  void execute(const NodePlan& node, torch::jit::Stack& stack, bool in_order);

  // The outputs, after all nodes. Those that share memory with variables or constants are copied.
  at::Tensor output(size_t index) const;
  std::vector<at::Tensor> outputs() const;

  c10::IValue& value(int64_t number) { return values_[number]; }
  at::Generator& generator() { return generator_; }

  Origin origin() const;
  // The error of a node that threw; to be called where the exception is caught.
  absl::Status failed(size_t node) const;

 private:
  void push(const ArgumentPlan& argument, torch::jit::Stack& stack, bool in_order);
  void call(const NodePlan& node, torch::jit::Stack& stack);
  void take_results(const NodePlan& node, torch::jit::Stack& stack);
  void take_list(const NodePlan::Result& result, std::vector<at::Tensor> tensors);

  const Plan& plan_;
  at::Generator generator_;
  std::vector<c10::IValue> values_;
};

}  // namespace trireme::internal
