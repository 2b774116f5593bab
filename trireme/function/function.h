#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/capture/eager_mode.h"
#include "trireme/capture/function_step.h"
#include "trireme/function/function_call.h"
#include "trireme/function/structure.h"
#include "trireme/graph/graph.h"

namespace trireme {

struct FunctionOptions {
  std::optional<uint64_t> seed;  // of its random numbers; else that of set_seed()
  // Whether a capture convinces itself that its graph is the function: captured twice, on two
  // sets of numbers, and replayed. Costs some runs of the function, once per signature.
  bool check_capture = true;
  size_t cached_signatures = 16;  // the least recently used goes
};

namespace internal {

// Finds or captures the graph for a call and runs it, for functions of all types. Shared by the
// copies of a Function; threads may call it as they may call that.
class FunctionCore {
 public:
  FunctionCore(std::string name, FunctionOptions options);
  ~FunctionCore();

  struct Result {
    std::vector<at::Tensor> tensors;
    FunctionCall::Shape shape;
  };
  Result run(const FunctionCall& call, const StepOptions& options);
  // What run() would replay, for those who run it elsewhere; counts as a step and draws for it.
  std::shared_ptr<const FunctionStep> step(const FunctionCall& call);
  // The same for those who only look at it: counts as no step, and what it draws goes back.
  std::shared_ptr<const FunctionStep> preview(const FunctionCall& call);
  // Runs the body in place, on the step's random numbers.
  void run_eagerly(const std::function<void()>& body);

  void set_step(uint64_t step);
  uint64_t step() const;
  int captures() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

bool is_inlined();  // called from a function that is being captured
// A result of eager code must not change with the variable that it shows.
at::Tensor own_result(const at::Tensor& tensor);

template <typename F>
struct SignatureOf : SignatureOf<decltype(&F::operator())> {};
template <typename C, typename R, typename... Args>
struct SignatureOf<R (C::*)(Args...) const> {
  using Type = R(Args...);
};
template <typename C, typename R, typename... Args>
struct SignatureOf<R (C::*)(Args...)> {
  using Type = R(Args...);
};
template <typename R, typename... Args>
struct SignatureOf<R (*)(Args...)> {
  using Type = R(Args...);
};

}  // namespace internal

template <typename Signature>
class Function;

// A function of tensors that is captured when first called with a signature (shapes, dtypes,
// strides, structure, numbers) and replayed from then on. Results carry no autograd history.
// Called inside of another captured function it becomes part of that one. From an argument that is
// an iterator each step draws anew what the body asks for; a call that fails before the step has
// begun puts it back. Copies share the captured
// graphs. Threads may call it at once if the variables that it writes allow it. Captures of all
// threads take turns; while one is under way, `.grad` of every variable is in its hands.
template <typename R, typename... Args>
class Function<R(Args...)> {
 public:
  Function(std::string name, std::function<R(Args...)> body, FunctionOptions options)
      : body_(std::move(body)),
        core_(std::make_shared<internal::FunctionCore>(std::move(name), std::move(options))) {}

  R operator()(std::decay_t<Args>... args) const { return run({}, args...); }

  R run(const StepOptions& options, std::decay_t<Args>... args) const {
    if (internal::is_inlined()) return body_(args...);
    if (runs_eagerly()) return run_body_eagerly(args...);
    Call call(*this, args...);
    auto result = core_->run(call, options);
    if constexpr (!std::is_void_v<R>) {
      internal::TensorCursor reader(result.tensors);
      return Structure<R>::replace(**static_cast<const std::optional<R>*>(result.shape.get()),
                                   reader);
    }
  }

  // The call as a step that can run anywhere, and how its results are put together.
  std::shared_ptr<const internal::FunctionStep> prepare(std::decay_t<Args>... args) const {
    return core_->step(Call(*this, args...));
  }
  // Such a step to look at. It is not for running: it draws no elements.
  std::shared_ptr<const internal::FunctionStep> preview(std::decay_t<Args>... args) const {
    return core_->preview(Call(*this, args...));
  }
  static R assemble(const internal::FunctionStep& step, const std::vector<at::Tensor>& tensors) {
    if constexpr (!std::is_void_v<R>) {
      internal::TensorCursor reader(tensors);
      return Structure<R>::replace(**static_cast<const std::optional<R>*>(step.shape.get()),
                                   reader);
    }
  }

  // The graph for such arguments, captured if it was not yet. Runs no step.
  Graph graph(std::decay_t<Args>... args) const {
    return Graph(core_->preview(Call(*this, args...))->plan);
  }

  // Steps count from 0; the number decides the step's random numbers.
  void set_step(uint64_t step) const { core_->set_step(step); }
  uint64_t step() const { return core_->step(); }
  int captures() const { return core_->captures(); }

 private:
  using Exemplar = std::optional<std::conditional_t<std::is_void_v<R>, int, R>>;

  struct Call : internal::FunctionCall {
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
      // Copies: a capture may run the body after this call has ended and again.
      body = [body = function.body_, exemplar,
              own = std::tuple<std::decay_t<Args>...>(args...)](internal::TensorCursor& replaced) {
        auto arguments = Structure<std::tuple<std::decay_t<Args>...>>::replace(own, replaced);
        return run_body(body, arguments, *exemplar);
      };
    }
  };

  static std::vector<at::Tensor> run_body(const std::function<R(Args...)>& body,
                                          std::tuple<std::decay_t<Args>...>& arguments,
                                          Exemplar& exemplar) {
    if constexpr (std::is_void_v<R>) {
      std::apply(body, arguments);
      exemplar = 0;
      return {};
    } else {
      static_assert(Structure<R>::kTensorsOnly,
                    "a captured function returns tensors: a number would be that of the capture");
      R result = std::apply(body, arguments);
      internal::Flattened flattened;
      Structure<R>::flatten(result, flattened);
      const std::vector<at::Tensor> nothing(flattened.tensors.size());
      internal::TensorCursor reader(nothing);
      exemplar = Structure<R>::replace(result, reader);
      return std::move(flattened.tensors);
    }
  }

  R run_body_eagerly(std::decay_t<Args>&... args) const {
    if constexpr (std::is_void_v<R>) {
      core_->run_eagerly([&] { body_(args...); });
    } else {
      std::optional<R> result;
      core_->run_eagerly([&] { result = body_(args...); });
      internal::Flattened flattened;
      Structure<R>::flatten(*result, flattened);
      for (at::Tensor& tensor : flattened.tensors) tensor = internal::own_result(tensor);
      internal::TensorCursor reader(flattened.tensors);
      return Structure<R>::replace(*result, reader);
    }
  }

  std::function<R(Args...)> body_;
  std::shared_ptr<internal::FunctionCore> core_;
};

template <typename F>
auto function(std::string name, F body, FunctionOptions options = {}) {
  using Signature = typename internal::SignatureOf<F>::Type;
  return Function<Signature>(std::move(name), std::move(body), std::move(options));
}

}  // namespace trireme
