#pragma once

#include <c10/core/StorageImpl.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/capture/captured.h"
#include "trireme/capture/self_check.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/function/device_plan.h"
#include "trireme/function/function_call.h"
#include "trireme/function/module_states.h"

namespace trireme::internal {

// A graph that was captured from a function, with everything that its runs need and the state of
// the program that it is valid for. Thread-safe: immutable except for the tuner, which has its own
// lock, and the plan for devices, which the first run makes.
struct CapturedGraph {
  ModuleStates modules;  // states of the modules when it was captured
  std::shared_ptr<const Plan> plan;
  std::vector<std::shared_ptr<VariableRecord>> variables;
  // Storages of the variables. Weak, so that no other storage can take the address of one.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  std::vector<bool> need_gradients;            // for each variable, whether it needed gradients
  std::vector<ExternalTensor> externals;       // tensors that became constants
  std::vector<TensorObject> external_objects;  // their objects that outlived the capture
  FunctionCall::Shape shape;                   // structure of the results
  std::vector<bool> accepts_end;  // for each source, true if the body accepts that it ends
  // Description of a part that the program itself cannot run, for errors; empty if there is none.
  std::string remote;
  // Backend of the variables that do not live in the program; null if all do.
  std::shared_ptr<VariableBackend> backend;
  bool inputs_on_cpu = true;               // true if all inputs of the capture were on the CPU
  c10::Device default_device = c10::kCPU;  // device of operators that no scope places
  mutable BranchTuner tuner;

  // Returns the plan for the devices that scopes name, for runs in this process; null if it runs as
  // it was captured. The first call warns of devices that do not exist.
  const DevicePlan* devices() const;

  // Returns true if the program's state outside of the signature is still the one that the graph
  // was captured for. A variable with another storage was given another dtype or device; a tensor
  // that became a constant may have been replaced or written to.
  bool is_valid() const;

 private:
  mutable std::once_flag planned_;
  mutable std::shared_ptr<const DevicePlan> devices_;
};

// Returns the graph as this program runs it: every device that operators and variables name is the
// one that is used, with the reason for it. Returns a graph that only a cluster can run as it is.
std::shared_ptr<const GraphData> placed_in_program(std::shared_ptr<const GraphData> graph);

// Makes a CapturedGraph of the result of a capture. `modules` are the states from before the
// capture. Throws Error if the graph uses variables of two backends.
std::shared_ptr<const CapturedGraph> make_captured_graph(const std::string& function,
                                                         CheckedCapture checked,
                                                         ModuleStates modules,
                                                         FunctionCall::Shape shape,
                                                         std::vector<bool> accepts_end);

}  // namespace trireme::internal
