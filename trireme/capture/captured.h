#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/capture/variable_registry.h"
#include "trireme/graph/plan.h"

// Options and result of a capture.
namespace trireme::internal {

struct CaptureOptions {
  std::string name;   // name of the function, for errors
  uint64_t seed = 0;  // seed of the step's random numbers
  uint64_t step = 0;  // number of the step, from which its random numbers follow too
  // Changes the numbers in arguments and variables before the step runs: 0 leaves them, 1 and 2
  // change them in two different ways (scratch.h). If the program reads a number from them and uses
  // it as a constant, captures with different perturbations give different graphs.
  int perturbation = 0;
};

// A tensor from outside of the step that became a constant of the graph. Holds only its version
// counter, not the tensor.
struct ExternalTensor {
  c10::VariableVersion version;
  uint32_t captured_version = 0;

  // Returns true if an operator has written to the tensor since the capture, so that the graph is
  // stale.
  bool changed() const { return version.current_version() != captured_version; }
};

// Result of one capture.
struct Captured {
  std::shared_ptr<GraphData> graph;
  std::vector<std::shared_ptr<VariableRecord>> variables;  // in the order of the graph's variables
  std::vector<ExternalTensor> externals;
  // Arguments, results and variables of the run that was recorded. Replays are checked against
  // them.
  std::vector<at::Tensor> inputs, outputs;
  std::vector<at::Tensor> variables_before, variables_after;
};

}  // namespace trireme::internal
