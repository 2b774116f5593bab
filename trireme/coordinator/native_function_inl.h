#pragma once

// The templates of native_function.h, which includes this file.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/coordinator/native_function.h"

namespace trireme {
namespace internal {

// The body of a native function, without its types.
struct NativeBody {
  size_t arguments = 0;  // Number of tensors that `call` takes.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> call;
};

// Registers a native function. Throws Error if the name is taken.
void add_native_function(const std::string& name, NativeBody body);
// Returns the native function of this name, or null if this binary has none. The pointer stays
// valid until the process ends.
const NativeBody* find_native_function(const std::string& name);

// Calls `body` with the tensors as its arguments and returns its results.
template <typename R, typename... Args, size_t... I>
std::vector<at::Tensor> call_native(const std::function<R(Args...)>& body,
                                    const std::vector<at::Tensor>& tensors,
                                    std::index_sequence<I...>) {
  if constexpr (std::is_void_v<R>) {
    body(tensors[I]...);
    return {};
  } else if constexpr (std::is_same_v<R, at::Tensor>) {
    return {body(tensors[I]...)};
  } else {
    return body(tensors[I]...);
  }
}

}  // namespace internal

template <typename R, typename... Args>
NativeFunction<R(Args...)>::NativeFunction(std::string name, std::function<R(Args...)> body)
    : name_(std::move(name)), body_(std::move(body)) {
  internal::add_native_function(
      name_, {sizeof...(Args), [body = body_](const std::vector<at::Tensor>& tensors) {
                return internal::call_native(body, tensors, std::index_sequence_for<Args...>());
              }});
}

template <typename F>
NativeFunction<typename internal::SignatureOf<F>::Type> native_function(std::string name, F body) {
  return {std::move(name), std::move(body)};
}

}  // namespace trireme
