#pragma once

#include <ATen/core/Tensor.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/coordinator/pending_result.h"
#include "trireme/function/function.h"

namespace trireme {

// A handle for the result of a scheduled closure whose function returns R. The result is returned
// to the client program as soon as it is available, so it can be fetched even after its worker has
// died:
//
//   tr::RemoteValue loss = coordinator.schedule(step, x, y);
//   torch::Tensor value = coordinator.fetch(loss);
//
// The template argument can be left out where it is deduced. Elsewhere, write RemoteValue<> for a
// tensor: std::vector<tr::RemoteValue<>>. Copies refer to the same result. Thread-safe. May outlive
// its coordinator.
template <class R = at::Tensor>
class RemoteValue {
 public:
  // Makes an empty handle, which refers to no closure.
  RemoteValue() = default;

  // Returns true if fetching does not block: the closure has succeeded, failed or been cancelled.
  bool ready() const { return result_.ready(); }
  // Blocks until the closure is done. Returns false if it did nothing, because its function draws
  // with Iterator::next_optional() and there were no more elements. fetch() then returns an R
  // without tensors. Throws the closure's error, or CANCELLED.
  bool has_value() const { return result_.has_value(); }

 private:
  friend struct internal::Access<RemoteValue>;
  explicit RemoteValue(internal::PendingResult result) : result_(std::move(result)) {}

  internal::PendingResult result_;
};

template <class R>
struct internal::Access<RemoteValue<R>> {
  static RemoteValue<R> make(PendingResult result) { return RemoteValue<R>(std::move(result)); }

  // Blocks until the closure is done and returns its result. Throws the closure's own error, or
  // CANCELLED.
  static R get(const RemoteValue<R>& value) {
    // Results of native functions have no recorded structure: they are a tensor, a vector of
    // tensors or nothing.
    if constexpr (std::is_same_v<R, at::Tensor>) {
      return value.result_.tensor();
    } else if constexpr (std::is_same_v<R, std::vector<at::Tensor>>) {
      return value.result_.tensors();
    } else if constexpr (std::is_void_v<R>) {
      value.result_.tensors();
    } else {
      const std::vector<at::Tensor> tensors = value.result_.tensors();
      return assemble<R>(value.result_.shape().get(), tensors);
    }
  }
};

}  // namespace trireme
