#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/function/function.h"

namespace trireme {
namespace internal {

struct NativeBody {
  size_t arguments = 0;
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> call;
};

// Throws Error for a name that is taken.
void add_native_function(const std::string& name, NativeBody body);
// Null if this binary has none of that name. What is found stays.
const NativeBody* find_native_function(const std::string& name);

}  // namespace internal

template <typename Signature>
class NativeFunction;

// A function of the program's own binary, which workers that run the same binary call by its name:
// for what cannot be captured. It takes tensors and gives nothing, a tensor or a vector of them; it
// has no part in the variables. Make it before main() or at its beginning, on every task:
//
//   const auto decode = tr::native_function("decode", [](const Tensor& bytes) { return ...; });
//   ...
//   if (me.is_server()) return tr::Server(me).join();
//   image = coordinator.schedule(decode, bytes);
//
// Only functions made in this way can be called, whatever a peer may ask for.
template <typename R, typename... Args>
class NativeFunction<R(Args...)> {
  static_assert((std::is_same_v<std::decay_t<Args>, at::Tensor> && ...),
                "a native function takes tensors");
  static_assert(std::is_void_v<R> || std::is_same_v<R, at::Tensor> ||
                    std::is_same_v<R, std::vector<at::Tensor>>,
                "a native function gives nothing, a tensor or a vector of tensors");

 public:
  NativeFunction(std::string name, std::function<R(Args...)> body)
      : name_(std::move(name)), body_(std::move(body)) {
    internal::add_native_function(
        name_, {sizeof...(Args), [body = body_](const std::vector<at::Tensor>& tensors) {
                  return call(body, tensors, std::index_sequence_for<Args...>());
                }});
  }

  R operator()(const std::decay_t<Args>&... args) const { return body_(args...); }
  const std::string& name() const { return name_; }

 private:
  template <size_t... I>
  static std::vector<at::Tensor> call(const std::function<R(Args...)>& body,
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

  std::string name_;
  std::function<R(Args...)> body_;
};

template <typename F>
auto native_function(std::string name, F body) {
  using Signature = typename internal::SignatureOf<F>::Type;
  return NativeFunction<Signature>(std::move(name), std::move(body));
}

}  // namespace trireme
