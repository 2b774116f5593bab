#pragma once

// The templates of function.h, which includes this file.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/capture/eager_mode.h"
#include "trireme/capture/function_step.h"
#include "trireme/function/function.h"
#include "trireme/function/function_call.h"
#include "trireme/function/structure.h"

namespace trireme {
namespace internal {

// Finds or captures the graph for a call and runs it. Implements the parts of Function that do not
// depend on its types. Shared by the copies of a Function, and thread-safe to the same extent.
class FunctionCore {
 public:
  FunctionCore(std::string name, FunctionOptions options);
  ~FunctionCore();

  struct Result {
    std::vector<at::Tensor> tensors;
    FunctionCall::Shape shape;  // null if there are no more elements and the body accepts that
  };
  // Runs one step, in this process or where its variables live.
  Result run(const FunctionCall& call, const StepOptions& options);
  // Returns the step that run() would run, to run it elsewhere. Counts as a step and draws its
  // elements. Returns null if there are no more elements and the body accepts that.
  std::shared_ptr<const FunctionStep> step(const FunctionCall& call);
  // Returns the same step for inspection. Does not count as a step, and puts back what it draws.
  std::shared_ptr<const FunctionStep> preview(const FunctionCall& call);
  // Returns the plan of that step as run() places it in this program: each operator names a device
  // that exists. A plan with operators or variables on other tasks is returned as it was captured.
  std::shared_ptr<const Plan> plan(const FunctionCall& call);
  // Calls `body` as plain code, with LibTorch's default generator seeded for the step. Restores the
  // generator afterwards. Counts as a step.
  void run_eagerly(const std::function<void()>& body);

  void set_step(uint64_t step);
  uint64_t step() const;
  int captures() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns true if the calling thread is capturing a function, so that a call becomes part of it.
bool is_inlined();
// Returns true if the calling thread runs a function in eager mode, so that a call becomes part of
// it: it draws the random numbers of that step, and its result keeps its autograd history.
bool is_in_eager_step();
// Returns the tensor detached, and copied if it shares memory with a variable: a result of an eager
// step must not change with the variable later.
at::Tensor detach_from_variables(const at::Tensor& tensor);

// Returns the result of a function that accepts the end of the data and has found it: an R without
// tensors.
template <typename R>
R result_at_end() {
  if constexpr (std::is_default_constructible_v<R>) {
    return R();
  } else if constexpr (!std::is_void_v<R>) {
    throw Error(
        ErrorCode::kEndOfData,
        "there are no more elements, and the function has no result for that; give the type "
        "of its result a default constructor");
  }
}

// Makes a function's result of type R out of the tensors that a run gave. `shape` is the
// FunctionStep's: a result with undefined tensors, as std::optional<R>. It is null for
// result_at_end().
template <typename R>
R assemble(const void* shape, const std::vector<at::Tensor>& tensors) {
  if (shape == nullptr) return result_at_end<R>();
  if constexpr (!std::is_void_v<R>) {
    TensorCursor reader(tensors);
    return Structure<R>::replace(**static_cast<const std::optional<R>*>(shape), reader);
  }
}

// True if the types of the arguments of F are known without a call: F is a function pointer, or has
// one operator(), which is not a template.
template <typename F>
concept HasOneSignature = requires(F body) { std::function{body}; };

// The type R(Args...) of a lambda, functor or function pointer.
template <typename F>
struct SignatureOf {
  static_assert(
      HasOneSignature<F>,
      "the function must have one signature, since its arguments are taken apart by their "
      "types: write [](const torch::Tensor& x) instead of [](auto x), and put a class "
      "with several operator() into a lambda");
};
template <HasOneSignature F>
struct SignatureOf<F> : SignatureOf<decltype(std::function{std::declval<F>()})> {};
template <typename Signature>
struct SignatureOf<std::function<Signature>> {
  using Type = Signature;
};

// True if a function takes tensors by a reference that is not const. It would assign to copies.
template <typename Signature>
inline constexpr bool kReturnsThroughArguments = false;
template <typename R, typename... Args>
inline constexpr bool kReturnsThroughArguments<R(Args...)> =
    ((std::is_lvalue_reference_v<Args> && !std::is_const_v<std::remove_reference_t<Args>> &&
      Structure<std::decay_t<Args>>::kTensorsOnly) ||
     ...);

}  // namespace internal

template <typename R, typename... Args>
Function<R(Args...)>::Function(std::string name, std::function<R(Args...)> body,
                               FunctionOptions options)
    : body_(std::move(body)),
      core_(std::make_shared<internal::FunctionCore>(std::move(name), std::move(options))) {}

template <typename R, typename... Args>
R Function<R(Args...)>::operator()(std::decay_t<Args>... args) const {
  return run({}, args...);
}

template <typename R, typename... Args>
R Function<R(Args...)>::run(const StepOptions& options, std::decay_t<Args>... args) const {
  if (internal::is_inlined() || internal::is_in_eager_step()) return body_(args...);
  if (runs_eagerly()) return run_body_eagerly(args...);
  Call call(*this, args...);
  auto result = core_->run(call, options);
  return internal::assemble<R>(result.shape.get(), result.tensors);
}

template <typename R, typename... Args>
Graph Function<R(Args...)>::graph(std::decay_t<Args>... args) const {
  return internal::Access<Graph>::make(core_->plan(Call(*this, args...)));
}

template <typename R, typename... Args>
void Function<R(Args...)>::set_step(uint64_t step) const {
  core_->set_step(step);
}

template <typename R, typename... Args>
uint64_t Function<R(Args...)>::step() const {
  return core_->step();
}

template <typename R, typename... Args>
int Function<R(Args...)>::captures() const {
  return core_->captures();
}

// Takes the arguments of a call apart into tensors, signatures and sources.
template <typename R, typename... Args>
struct Function<R(Args...)>::Call : internal::FunctionCall {
  // A result of the body with undefined tensors: its structure, from which results of replays are
  // built. Empty until the body has run.
  using Exemplar = std::optional<std::conditional_t<std::is_void_v<R>, int, R>>;

  Call(const Function& function, std::decay_t<Args>&... args) {
    internal::Flattened flattened;
    ((Structure<std::decay_t<Args>>::flatten(args, flattened),
      source_arguments.resize(flattened.sources.size(), arguments.size()),
      arguments.push_back(std::exchange(flattened.signature, {}))),
     ...);
    tensors = std::move(flattened.tensors);
    sources = std::move(flattened.sources);
    const auto exemplar = std::make_shared<Exemplar>();
    shape = exemplar;
    // Holds copies of the body and the arguments, since a capture runs the body several times.
    body = [body = function.body_, exemplar,
            own = std::tuple<std::decay_t<Args>...>(args...)](internal::TensorCursor& replaced) {
      auto arguments = Structure<std::tuple<std::decay_t<Args>...>>::replace(own, replaced);
      return run_body(body, arguments, *exemplar);
    };
  }

  static std::vector<at::Tensor> run_body(const std::function<R(Args...)>& body,
                                          std::tuple<std::decay_t<Args>...>& arguments,
                                          Exemplar& exemplar) {
    if constexpr (std::is_void_v<R>) {
      std::apply(body, arguments);
      exemplar = 0;
      return {};
    } else {
      static_assert(Structure<R>::kTensorsOnly,
                    "a captured function must return tensors: a number would be frozen at its "
                    "value in the capture");
      R result = std::apply(body, arguments);
      internal::Flattened flattened;
      Structure<R>::flatten(result, flattened);
      const std::vector<at::Tensor> nothing(flattened.tensors.size());
      internal::TensorCursor reader(nothing);
      exemplar = Structure<R>::replace(result, reader);
      return std::move(flattened.tensors);
    }
  }
};

template <typename R, typename... Args>
R Function<R(Args...)>::run_body_eagerly(std::decay_t<Args>&... args) const {
  if constexpr (std::is_void_v<R>) {
    core_->run_eagerly([&] { body_(args...); });
  } else {
    std::optional<R> result;
    core_->run_eagerly([&] { result = body_(args...); });
    internal::Flattened flattened;
    Structure<R>::flatten(*result, flattened);
    for (at::Tensor& tensor : flattened.tensors) tensor = internal::detach_from_variables(tensor);
    internal::TensorCursor reader(flattened.tensors);
    return Structure<R>::replace(*result, reader);
  }
}

// Steps of a function for sessions and coordinators, which run them in other processes.
template <typename R, typename... Args>
struct internal::Access<Function<R(Args...)>> {
  static Function<R(Args...)> make(std::string name, std::function<R(Args...)> body,
                                   FunctionOptions options) {
    return Function<R(Args...)>(std::move(name), std::move(body), std::move(options));
  }
  // Returns the call as a step that can run in any process. Counts as a step.
  static std::shared_ptr<const FunctionStep> prepare(const Function<R(Args...)>& function,
                                                     std::decay_t<Args>... args) {
    return function.core_->step(typename Function<R(Args...)>::Call(function, args...));
  }
  // Returns the call as a step for inspection. It must not be run: its elements go back to their
  // sources.
  static std::shared_ptr<const FunctionStep> preview(const Function<R(Args...)>& function,
                                                     std::decay_t<Args>... args) {
    return function.core_->preview(typename Function<R(Args...)>::Call(function, args...));
  }
  // Returns the call with its types erased, to capture it without the function's cache.
  static FunctionCall call(const Function<R(Args...)>& function, std::decay_t<Args>... args) {
    return typename Function<R(Args...)>::Call(function, args...);
  }
};

template <typename F>
Function<typename internal::SignatureOf<F>::Type> function(std::string name, F body,
                                                           FunctionOptions options) {
  using Signature = typename internal::SignatureOf<F>::Type;
  static_assert(!internal::kReturnsThroughArguments<Signature>,
                "a captured function works on copies of its arguments, so a tensor that it assigns "
                "to an argument is lost: take const torch::Tensor&, and return the tensor");
  return internal::Access<Function<Signature>>::make(std::move(name), std::move(body),
                                                     std::move(options));
}

}  // namespace trireme
