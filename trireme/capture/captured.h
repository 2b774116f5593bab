#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/capture/variable_registry.h"
#include "trireme/graph/plan.h"

// The options of a capture, and its result.
namespace trireme::internal {

struct CaptureOptions {
  std::string name;
  uint64_t seed = 0;
  uint64_t step = 0;
  // Runs on other numbers in arguments and variables. A number that the program read from them
  // and put into the graph then differs from the one of a capture without it. 0 for none; 1 and 2
  // are different ones.
  int perturbation = 0;
};

// A tensor of the program that became a constant. The graph is stale once it was written to.
struct ExternalTensor {
  c10::VariableVersion version;
  uint32_t captured_version = 0;

  bool changed() const { return version.current_version() != captured_version; }
};

struct Captured {
  std::shared_ptr<GraphData> graph;
  std::vector<std::shared_ptr<VariableRecord>> variables;  // as the graph numbers them
  std::vector<ExternalTensor> externals;
  // Arguments, results and variables of the run that was recorded, for checks.
  std::vector<at::Tensor> inputs, outputs;
  std::vector<at::Tensor> variables_before, variables_after;
};

}  // namespace trireme::internal
