#pragma once

// The templates of session.h, which includes this file.

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/function/function.h"
#include "trireme/runtime/session.h"

namespace trireme {

template <typename R, typename... Args>
R Session::run(const Function<R(Args...)>& function, std::decay_t<Args>... args) {
  return run(SessionStepOptions{}, function, std::move(args)...);
}

template <typename R, typename... Args>
R Session::run(const SessionStepOptions& options, const Function<R(Args...)>& function,
               std::decay_t<Args>... args) {
  using Steps = internal::Access<Function<R(Args...)>>;
  const auto step = Steps::prepare(function, std::move(args)...);
  if (step == nullptr) return internal::result_at_end<R>();
  return internal::assemble<R>(step->shape.get(), run_step(*step, options));
}

template <typename F>
  requires std::is_invocable_v<F>
std::invoke_result_t<F> Session::run(const F& body) {
  return run(function("session.run", std::function<std::invoke_result_t<F>()>(body)));
}

template <typename R, typename... Args>
std::future<R> Session::start(const Function<R(Args...)>& function, std::decay_t<Args>... args) {
  using Steps = internal::Access<Function<R(Args...)>>;
  const auto step = Steps::prepare(function, std::move(args)...);
  auto promise = std::make_shared<std::promise<R>>();
  if (step == nullptr) {
    if constexpr (std::is_void_v<R>) {
      promise->set_value();
    } else {
      promise->set_value(internal::result_at_end<R>());
    }
    return promise->get_future();
  }
  // The callback does not hold the step, which would keep the caller's tensors.
  const auto shape = step->shape;
  start_step(*step, {},
             [shape, promise](std::vector<at::Tensor> tensors, std::exception_ptr error) {
               if (error) return promise->set_exception(error);
               if constexpr (std::is_void_v<R>) {
                 promise->set_value();
               } else {
                 promise->set_value(internal::assemble<R>(shape.get(), tensors));
               }
             });
  return promise->get_future();
}

template <typename R, typename... Args>
Graph Session::graph(const Function<R(Args...)>& function, std::decay_t<Args>... args) {
  using Steps = internal::Access<Function<R(Args...)>>;
  return placed_graph(*Steps::preview(function, std::move(args)...));
}

}  // namespace trireme
