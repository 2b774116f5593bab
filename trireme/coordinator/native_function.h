#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/function/function.h"

namespace trireme {

template <typename Signature>
class NativeFunction;

// A function of the client program's own binary, which workers that run the same binary call by its
// name. Use it for code that cannot be captured, such as a decoder. It takes tensors and returns
// nothing, a tensor or a vector of tensors. It cannot use variables of a strategy. Make it before
// main() or at its beginning, on every task:
//
//   const auto decode = tr::native_function("decode", [](const Tensor& bytes) { return ...; });
//   ...
//   if (me.is_server()) return tr::Server(me).join();
//   image = coordinator.schedule(decode, bytes);
//
// Workers run only functions that were made in this way, whatever name a peer asks for. Thread-safe
// if the body is.
template <typename R, typename... Args>
class NativeFunction<R(Args...)> {
  static_assert((std::is_same_v<std::decay_t<Args>, at::Tensor> && ...),
                "a native function takes tensors");
  static_assert(std::is_void_v<R> || std::is_same_v<R, at::Tensor> ||
                    std::is_same_v<R, std::vector<at::Tensor>>,
                "a native function returns nothing, a tensor or a vector of tensors");

 public:
  // Registers the function. Throws Error if this program has made one of the same name.
  NativeFunction(std::string name, std::function<R(Args...)> body);

  // Calls the function in this process.
  R operator()(const std::decay_t<Args>&... args) const { return body_(args...); }
  // Returns the name by which workers find it.
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::function<R(Args...)> body_;
};

// Makes a native function whose signature is that of `body`.
template <typename F>
NativeFunction<typename internal::SignatureOf<F>::Type> native_function(std::string name, F body);

}  // namespace trireme

#include "trireme/coordinator/native_function_inl.h"
