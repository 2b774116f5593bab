#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/exec/device_moves.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// Holds the values of one run of a plan and runs single nodes on them. Its users decide which node
// runs when: replay() runs a whole graph, a PartRun the part of one task.
//
// Several threads may run different nodes at once if no thread uses a value while another thread
// stores or releases it; a BranchSchedule guarantees that. The plan must outlive the runner.
class NodeRunner {
 public:
  // Generators of accelerators are seeded with `device_seed` as well, unless it is 0.
  NodeRunner(const Plan& plan, at::Generator generator, uint64_t device_seed = 0);

  // Lets checks trust the contents of tensors on accelerators (graph/guards.h). Must be called
  // before the first node runs, and never for a graph from a peer.
  void trust_device_contents() { trusted_ = true; }

  // Sets the values of inputs, variables and constants. Copies the constants that the graph writes
  // to. Fails if the number of inputs or variables is wrong.
  absl::Status bind(const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& variables);

  // Runs one node; throws what its operator throws. `stack` is scratch space and empty afterwards.
  // With `in_order`, nodes run in captured order, and values are released at their last use;
  // otherwise the caller releases them. A random operator draws from the generator of `replica`
  // (-1 for none) for its device.
  void execute(const NodePlan& node, torch::jit::Stack& stack, bool in_order, int replica = -1);

  // Return one output, or all of them. Must be called after all nodes have run. Outputs that share
  // memory with variables or constants are copied.
  at::Tensor output(size_t index) const;
  std::vector<at::Tensor> outputs() const;

  c10::IValue& value(int64_t number) { return values_[number]; }
  at::Generator& generator() { return generator_; }

  // Returns the origin of errors of this run: the function, which gave the graph its name.
  Origin origin() const;
  // Returns the error of a node that threw. Must be called from the handler that caught the
  // exception.
  absl::Status current_exception_as_status(size_t node) const;

 private:
  void push(const ArgumentPlan& argument, torch::jit::Stack& stack, bool in_order);
  void call(const NodePlan& node, torch::jit::Stack& stack, int replica);
  // Calls a move from an accelerator. Returns false if the operator has to make the move itself.
  bool call_move(const NodePlan& node, torch::jit::Stack& stack);
  // Makes the device of a moved value wait for it. Must be called for each use.
  void await_move(int64_t value) {
    if (moves_) moves_->await(static_cast<uint32_t>(value), values_[value].toTensor());
  }
  at::Generator& generator_of(int replica, c10::Device device);
  void store_results(const NodePlan& node, torch::jit::Stack& stack);
  void store_list(const NodePlan::Result& result, std::vector<at::Tensor> tensors);

  const Plan& plan_;
  at::Generator generator_;  // of operators on the CPU outside of replicas
  const uint64_t device_seed_;
  Mutex mutex_;
  // The other generators, by replica and device. Made at the first use.
  std::map<std::pair<int, std::string>, at::Generator> generators_ ABSL_GUARDED_BY(mutex_);
  bool trusted_ = false;              // true if contents on accelerators are not checked
  std::optional<DeviceMoves> moves_;  // nullopt if the plan has none
  std::vector<c10::IValue> values_;   // by number; None before a value is made and once released
};

}  // namespace trireme::internal
