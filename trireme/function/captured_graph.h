#pragma once

#include <c10/core/StorageImpl.h>

#include <memory>
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
// lock.
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
  // The plan for the devices that scopes name; null if it runs as it was captured.
  std::shared_ptr<const DevicePlan> devices;
  mutable BranchTuner tuner;

  // Returns true if the program's state outside of the signature is still the one that the graph
  // was captured for. A variable with another storage was given another dtype or device; a tensor
  // that became a constant may have been replaced or written to.
  bool is_valid() const;
};

// Makes a CapturedGraph of the result of a capture. `modules` are the states from before the
// capture. Throws Error if the graph uses variables of two backends.
std::shared_ptr<const CapturedGraph> make_captured_graph(const std::string& function,
                                                         CheckedCapture checked,
                                                         ModuleStates modules,
                                                         FunctionCall::Shape shape,
                                                         std::vector<bool> accepts_end);

}  // namespace trireme::internal
