#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/function/structure.h"

namespace trireme {

namespace internal {
class ClosureQueue;
struct Closure;
}  // namespace internal

// What a scheduled closure will give. Its result comes home as soon as it is there, so that it can
// be fetched after its worker died. A handle: copies mean the same. Thread-safe.
class RemoteValue {
 public:
  RemoteValue() = default;
  RemoteValue(std::shared_ptr<internal::ClosureQueue> queue,
              std::shared_ptr<internal::Closure> closure);

  // Whether fetching it does not wait any more: it is here, failed or was cancelled.
  bool ready() const;
  // Waits for it. Throws the closure's own error, or CANCELLED.
  std::vector<at::Tensor> tensors() const;
  // The same of a function that returns one tensor.
  at::Tensor tensor() const;

 protected:
  // How the function's results are put together (FunctionStep); after tensors().
  std::shared_ptr<const void> shape() const;

 private:
  std::shared_ptr<internal::ClosureQueue> queue_;
  std::shared_ptr<internal::Closure> closure_;
};

// The same for a function that returns R.
template <typename R>
class RemoteValueOf : public RemoteValue {
 public:
  RemoteValueOf() = default;
  explicit RemoteValueOf(RemoteValue value) : RemoteValue(std::move(value)) {}

  R get() const {
    if constexpr (std::is_same_v<R, at::Tensor>) {
      return tensor();
    } else if constexpr (std::is_same_v<R, std::vector<at::Tensor>>) {
      return tensors();
    } else if constexpr (std::is_void_v<R>) {
      tensors();
    } else {
      const std::vector<at::Tensor> parts = tensors();
      internal::TensorCursor reader(parts);
      const std::shared_ptr<const void> exemplar = shape();
      return Structure<R>::replace(**static_cast<const std::optional<R>*>(exemplar.get()), reader);
    }
  }
};

}  // namespace trireme
