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

// One call of a function as its core sees it, without its types.
struct FunctionCall {
  // Runs the function with tensors for arguments and results.
  using Body = std::function<std::vector<at::Tensor>(TensorCursor&)>;
  // What its results looked like when it was captured, with the tensors left out.
  using Shape = std::shared_ptr<const void>;

  std::vector<at::Tensor> tensors;
  std::vector<std::string> arguments;  // their signatures
  ElementSources sources;
  std::vector<size_t> source_arguments;  // the argument that each source is in
  Body body;
  Shape shape;  // read after `body` has run
};

}  // namespace trireme::internal
