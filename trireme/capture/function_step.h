#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

namespace trireme {

struct StepOptions {
  std::stop_token stop;         // checked before each operator
  bool check_numerics = false;  // fail at the first operator that makes a NaN, and name it
  std::string trace_file;       // where a Chrome trace of the operators goes
};

namespace internal {

struct Plan;
struct VariableRecord;

// The elements that a step draws from one source. They follow the tensors of the arguments in the
// step's inputs, each as `tensors` of them.
struct Draw {
  size_t argument = 0;    // the first that holds the source
  uint64_t resource = 0;  // where they are to be drawn instead; 0: the inputs are they
  size_t elements = 0;
  size_t tensors = 0;      // of an element
  size_t first_input = 0;  // the first of elements * tensors inputs
};

// One call of a captured function, ready to run anywhere.
struct FunctionStep {
  std::string function;
  std::shared_ptr<const Plan> plan;
  std::vector<std::shared_ptr<VariableRecord>> variables;  // as the plan numbers them
  std::vector<at::Tensor> inputs;                          // of a draw with a resource, examples
  std::vector<Draw> draws;  // one for each source among the arguments
  uint64_t seed = 0;
  uint64_t step = 0;
  std::shared_ptr<const void> shape;  // of its results
};

}  // namespace internal
}  // namespace trireme
