#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/function/draws.h"
#include "trireme/function/structure.h"

namespace trireme::internal {

// One call of a function with the types of its arguments and results erased.
struct FunctionCall {
  // Runs the function on the tensors of a cursor and returns the tensors of its results.
  using Body = std::function<std::vector<at::Tensor>(TensorCursor&)>;
  // Structure of the results when the function was captured, without the tensors. Points to a type
  // that only the Function knows.
  using Shape = std::shared_ptr<const void>;

  std::vector<at::Tensor> tensors;       // tensors of all arguments, in order
  std::vector<std::string> arguments;    // signature of each argument
  ElementSources sources;                // sources among the arguments, each once
  std::vector<size_t> source_arguments;  // for each source, the first argument that holds it
  Body body;
  Shape shape;  // valid once `body` has run
};

}  // namespace trireme::internal
