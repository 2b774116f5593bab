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
  // Returns the result of a closure that was not scheduled, because there are no more elements in
  // an iterator of the client program and its function accepts that.
  static PendingResult ended();

  // Returns true if the closure has succeeded, failed or been cancelled.
  bool ready() const;
  // Blocks until the closure is done and returns the tensors of its result. Throws the closure's
  // own error, or CANCELLED.
  std::vector<at::Tensor> tensors() const;
  // Returns the result of a function that returns one tensor. Blocks and throws as tensors() does.
  at::Tensor tensor() const;
  // Blocks until the closure is done. Returns false if it did nothing, because there were no more
  // elements and its function accepts that. Throws as tensors() does.
  bool has_value() const;
  // Returns the structure of the function's result (FunctionStep::shape). Must be called after
  // tensors().
  std::shared_ptr<const void> shape() const;

 private:
  std::shared_ptr<ClosureQueue> queue_;  // Null if the closure was not scheduled.
  std::shared_ptr<Closure> closure_;
};

}  // namespace trireme::internal
