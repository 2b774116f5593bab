#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/graph/plan.h"
#include "trireme/graph/variable_registry.h"

// Runs a step once and writes down every operator below autograd that it calls, as a graph. The
// kernels really run, on scratch copies of the variables and on copies of the arguments, so that
// nothing but the graph comes of it: variables, gradients and random state are as before.
namespace trireme::internal {

// The step: from its tensor arguments to its tensor results.
using StepBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

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
  // What the run started from and came to, for checks.
  std::vector<at::Tensor> inputs, outputs;
  std::vector<at::Tensor> variables_before, variables_after;
};

// Throws Error, which names the operator, when the step does what no graph can repeat. Whatever
// the step itself throws passes through. Any number of threads may capture at once.
Captured capture(const StepBody& step, const std::vector<at::Tensor>& inputs,
                 const CaptureOptions& options);

// Makes sure that LibTorch tells of the operators that run under kCaptureKey.
void register_capture();

// Whether the calling thread is inside a step that is being captured.
bool is_capturing();
// The name of that step; empty: there is none.
std::string captured_function();

// Names that nodes carry into explanations and errors; used by Scope.
void push_scope(const std::string& name);
void pop_scope();

}  // namespace trireme::internal
