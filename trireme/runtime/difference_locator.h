#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/capture/function_step.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/function/function_call.h"

// Finds out why a step of a captured function differs from eager code. For check().
namespace trireme::internal {

// Returns ||a - b|| / ||b||. Elements that are NaN, or the same infinity, in both tensors are
// equal. Returns infinity if shapes or dtypes differ, or if only `b` is zero.
double relative_difference(const at::Tensor& a, const at::Tensor& b);

// A step that can be repeated.
struct RepeatableStep {
  // Puts back the state from before the step. Called before each of the others.
  std::function<void()> restart;
  std::function<void()> run_eagerly;                             // runs it as eager code
  std::function<std::shared_ptr<const FunctionStep>()> preview;  // returns its graph and inputs
  std::function<FunctionCall()> call;                            // returns its body and arguments
  // Returns copies of the contents that the variables of the step had before it.
  std::function<std::vector<at::Tensor>(const FunctionStep&)> variables;
};

// A result or a variable of a step that differs from eager code. Both are unset for anything else.
struct DifferentObject {
  int64_t result = -1;                       // index of the result
  const VariableRecord* variable = nullptr;  // the variable
};

struct DifferenceCause {
  std::string op;     // the first operator that differs; empty if it is not known
  std::string cause;  // likely cause and remedy
};

// Looks for the first operator that differs. The body is captured again: if the graph is another
// one, something in the program has changed. If it is the same, the results of its operators are
// compared with those of the operators that the eager code calls. `in_session` is true if the step
// that differs ran in a session. Never throws.
DifferenceCause locate_difference(const RepeatableStep& step, const DifferentObject& object,
                                  double tolerance, bool in_session);

}  // namespace trireme::internal
