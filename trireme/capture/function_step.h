#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

namespace trireme {

// Options for one run of a captured function: `step.run({.check_numerics = true}, x, y)`.
struct StepOptions {
  // Cancels the step. Checked before each operator.
  std::stop_token stop;
  // True to fail at the first operator that makes a NaN. The error names the operator.
  bool check_numerics = false;
  // File to which a trace of the operators is written, in Chrome's format; empty for none.
  std::string trace_file;
};

namespace internal {

struct Plan;
struct VariableRecord;

// The elements that a step draws from one source, such as an iterator. In the step's inputs they
// follow the tensors of the arguments; each element takes `tensors` inputs.
struct Draw {
  size_t argument = 0;  // index of the first argument that holds the source
  // Id of the source on the worker from which the elements are to be drawn; 0 if the inputs already
  // hold them.
  uint64_t resource = 0;
  size_t elements = 0;       // number of elements
  size_t tensors = 0;        // number of tensors in one element
  size_t first_input = 0;    // index of the first of the elements * tensors inputs
  bool accepts_end = false;  // true if the function accepts that there are no more elements
};

// One call of a captured function, ready to run in any process.
struct FunctionStep {
  std::string function;  // name of the function
  std::shared_ptr<const Plan> plan;
  std::vector<std::shared_ptr<VariableRecord>> variables;  // in the order of the plan's variables
  // Inputs of the plan. Those of a draw with a resource are only examples of shape and dtype.
  std::vector<at::Tensor> inputs;
  std::vector<Draw> draws;  // one for each source among the arguments
  // Seed and step number, from which the step's random numbers follow.
  uint64_t seed = 0;
  uint64_t step = 0;
  std::shared_ptr<const void> shape;  // structure of the results, for assemble() of a Function
};

}  // namespace internal
}  // namespace trireme
