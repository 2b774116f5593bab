#pragma once

#include <c10/core/StorageImpl.h>

#include <memory>
#include <string>
#include <vector>

#include "trireme/capture/captured.h"
#include "trireme/capture/self_check.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/function/function_call.h"
#include "trireme/function/training_modes.h"

namespace trireme::internal {

// A graph that was captured from a function, with all that its runs need and what it holds for.
// Immutable but for its tuner, so that many calls may share it.
struct CapturedGraph {
  TrainingModes modes;
  std::shared_ptr<const Plan> plan;
  std::vector<std::shared_ptr<VariableRecord>> variables;
  std::vector<const c10::StorageImpl*> storages;  // of the variables
  std::vector<ExternalTensor> externals;
  FunctionCall::Shape shape;
  std::string remote;  // a part that the program itself cannot run, for people
  std::shared_ptr<VariableBackend> backend;  // of those variables that are not in the program
  mutable BranchTuner tuner;                 // thread-safe

  // Returns true if the program's state outside of the signature is what it was. A variable with
  // other memory was given another dtype or device; a constant's source may have new contents.
  bool holds() const;
};

// Puts together what a capture of `function` gave. `modes` are those from before the capture.
// Throws Error if the graph uses variables of two backends.
std::shared_ptr<const CapturedGraph> make_captured_graph(const std::string& function,
                                                         CheckedCapture checked,
                                                         TrainingModes modes,
                                                         FunctionCall::Shape shape);

}  // namespace trireme::internal
