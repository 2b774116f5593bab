#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace trireme::internal {

class ClosureQueue;
struct Closure;

// The result of a scheduled closure, without its type: the part of RemoteValue that is not a
// template. Copies refer to the same result. Thread-safe.
class PendingResult {
 public:
  PendingResult() = default;
  PendingResult(std::shared_ptr<ClosureQueue> queue, std::shared_ptr<Closure> closure);

  // Returns true if the closure has succeeded, failed or been cancelled.
  bool ready() const;
  // Blocks until the closure is done and returns the tensors of its result. Throws the closure's
  // own error, or CANCELLED.
  std::vector<at::Tensor> tensors() const;
  // Returns the result of a function that returns one tensor. Blocks and throws as tensors() does.
  at::Tensor tensor() const;
  // Returns the structure of the function's result (FunctionStep::shape). Must be called after
  // tensors().
  std::shared_ptr<const void> shape() const;

 private:
  std::shared_ptr<ClosureQueue> queue_;
  std::shared_ptr<Closure> closure_;
};

}  // namespace trireme::internal
