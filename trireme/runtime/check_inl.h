#pragma once

// The templates of check.h, which includes this file.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/capture/function_step.h"
#include "trireme/function/draws.h"
#include "trireme/function/function_call.h"
#include "trireme/function/structure.h"
#include "trireme/runtime/check.h"

namespace trireme {
namespace internal {

// Stands for the sources among the arguments of a check. Keeps the elements that it draws from
// them, so that the same elements can be drawn again, and puts them back at its end. Not
// thread-safe.
class RepeatableSources {
 public:
  explicit RepeatableSources(const ElementSources& sources);
  ~RepeatableSources();

  RepeatableSources(const RepeatableSources&) = delete;
  RepeatableSources& operator=(const RepeatableSources&) = delete;

  // Returns what stands for each source.
  const TensorCursor::Drawn& replacements() const { return replacements_; }
  // Returns the number of elements that were drawn from each source.
  std::vector<size_t> positions() const;
  // Makes the sources continue where they were when positions() returned `positions`.
  void rewind(const std::vector<size_t>& positions) const;
  // Returns the name of a source, for reports.
  std::string name(size_t source) const;

 private:
  class Source;

  std::vector<std::shared_ptr<Source>> sources_;
  TensorCursor::Drawn replacements_;
};

// A function and its arguments with their types erased.
struct CheckedFunction {
  using Tensors = std::vector<at::Tensor>;

  const RepeatableSources& sources;
  // Run a step in this process and in a session. Return the tensors of its result.
  std::function<Tensors()> run;
  std::function<Tensors(Session&)> run_in_session;
  // Return a step for inspection, and the call that it is made of (Access<Function>).
  std::function<std::shared_ptr<const FunctionStep>()> preview;
  std::function<FunctionCall()> call;
  // Return and set the number of the next step.
  std::function<uint64_t()> step;
  std::function<void(uint64_t)> set_step;
};

// Implements check().
CheckReport check_function(const CheckedFunction& function, const CheckOptions& options);

// Returns the tensors of the value that `run` returns.
template <typename Run>
std::vector<at::Tensor> result_tensors(const Run& run) {
  using Result = std::invoke_result_t<Run>;
  if constexpr (std::is_void_v<Result>) {
    run();
    return {};
  } else {
    Flattened flattened;
    Structure<Result>::flatten(run(), flattened);
    return std::move(flattened.tensors);
  }
}

}  // namespace internal

template <typename R, typename... Args>
CheckReport check(const Function<R(Args...)>& function, const CheckOptions& options,
                  std::decay_t<Args>... args) {
  using Steps = internal::Access<Function<R(Args...)>>;
  using Arguments = std::tuple<std::decay_t<Args>...>;
  const Arguments given(std::move(args)...);
  internal::Flattened flattened;
  Structure<Arguments>::flatten(given, flattened);
  const internal::RepeatableSources sources(flattened.sources);
  internal::TensorCursor cursor(flattened.tensors, &sources.replacements());
  const Arguments arguments = Structure<Arguments>::replace(given, cursor);
  // Calls `use` with copies of the arguments.
  const auto apply = [&](auto use) { return std::apply(use, arguments); };
  return internal::check_function(
      {.sources = sources,
       .run =
           [&] {
             return internal::result_tensors([&]() -> R {
               return apply([&](const auto&... each) { return function(each...); });
             });
           },
       .run_in_session =
           [&](Session& session) {
             return internal::result_tensors([&]() -> R {
               return apply([&](const auto&... each) { return session.run(function, each...); });
             });
           },
       .preview =
           [&] {
             return apply([&](const auto&... each) { return Steps::preview(function, each...); });
           },
       .call =
           [&] {
             return apply([&](const auto&... each) { return Steps::call(function, each...); });
           },
       .step = [&] { return function.step(); },
       .set_step = [&](uint64_t step) { function.set_step(step); }},
      options);
}

}  // namespace trireme
