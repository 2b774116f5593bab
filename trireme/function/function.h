#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "trireme/base/access.h"
#include "trireme/capture/eager_mode.h"
#include "trireme/capture/function_step.h"
#include "trireme/graph/graph.h"

namespace trireme {

// Options of function().
struct FunctionOptions {
  // Seed of the function's random numbers. Without one, the seed of set_seed() is used.
  std::optional<uint64_t> seed;
  // True to check each capture: the function is captured twice more on other numbers, the graphs
  // must be equal, and replays must give the same results. Costs two more runs of the function and
  // three replays, once per signature.
  bool check_capture = true;
  // Number of signatures whose graphs are kept. The least recently used one is evicted.
  size_t cached_signatures = 16;
};

namespace internal {
class FunctionCore;
template <typename F>
struct SignatureOf;
}  // namespace internal

template <typename Signature>
class Function;

// A function of tensors that is captured as a graph when it is first called with a signature
// (shapes, dtypes, strides, structure, numbers), and replayed from then on. Made by function():
//
//   auto step = tr::function("step", [&](const torch::Tensor& x, const torch::Tensor& y) {
//     torch::Tensor loss = torch::mse_loss(net->forward(x), y);
//     optimizer.minimize(loss);  // backward and update, both in the graph
//     return loss;
//   });
//   torch::Tensor loss = step(x, y);  // the first call captures, the others replay
//
// Results carry no autograd history. Called inside another captured function, it becomes part of
// that one. If an argument is an iterator, each step draws from it as many elements as the body
// asks for; a call that fails before its step has begun puts them back.
//
// A handle: copies share the captured graphs and the count of steps. Threads may call it at the
// same time unless a step writes variables in the program's memory, which are not synchronised.
// Captures of all threads take turns, and while one runs no other thread may use `.grad` of a
// variable, or a variable that the function writes.
template <typename R, typename... Args>
class Function<R(Args...)> {
 public:
  // Runs one step. Throws Error if the function cannot be captured, or the step fails.
  R operator()(std::decay_t<Args>... args) const;
  // Runs one step with options.
  R run(const StepOptions& options, std::decay_t<Args>... args) const;

  // Returns the graph for arguments with this signature, and captures it if there is none yet. Runs
  // no step.
  Graph graph(std::decay_t<Args>... args) const;

  // Sets the number of the next step. Steps count from 0; seed and number decide the random numbers
  // of a step.
  void set_step(uint64_t step) const;
  // Returns the number of the next step.
  uint64_t step() const;
  // Returns how many graphs were captured so far.
  int captures() const;

 private:
  friend struct internal::Access<Function>;
  struct Call;

  Function(std::string name, std::function<R(Args...)> body, FunctionOptions options);
  R run_body_eagerly(std::decay_t<Args>&... args) const;

  std::function<R(Args...)> body_;
  std::shared_ptr<internal::FunctionCore> core_;
};

// Returns a captured function with this body. `name` is for errors, explanations and traces. The
// body takes and returns tensors, and vectors, maps, pairs, tuples and optionals of them; it may
// also take numbers, strings and iterators (structure.h). The types of its arguments must be
// written out: a generic lambda does not compile.
template <typename F>
Function<typename internal::SignatureOf<F>::Type> function(std::string name, F body,
                                                           FunctionOptions options = {});

}  // namespace trireme

#include "trireme/function/function_inl.h"
