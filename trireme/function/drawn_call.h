#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "trireme/capture/function_step.h"
#include "trireme/function/draws.h"
#include "trireme/function/function_call.h"

namespace trireme::internal {

// A call together with the elements that were drawn for it from the sources among its arguments.
// Elements that are not kept return to their sources when it ends. Refers to the call, which must
// outlive it. Used by one thread.
class DrawnCall {
 public:
  explicit DrawnCall(const FunctionCall& call) : call_(call), draws_(call.sources) {}

  const FunctionCall& call() const { return call_; }
  const Draws& draws() const { return draws_; }

  // Draws elements or puts them back until there are `counts[i]` of source `i`.
  void adjust(const std::vector<size_t>& counts) { draws_.adjust(counts); }
  // Like adjust(), but stops at the first source that has no more elements instead of throwing.
  void adjust_up_to(const std::vector<size_t>& counts);
  // Uses the elements up. For a step that has begun.
  void keep() { draws_.keep(); }

  // Returns the signatures of the arguments, with the elements that were drawn from them.
  std::vector<std::string> signatures() const;
  // Returns the inputs of the step's graph: the tensors of the arguments, then those of the
  // elements.
  std::vector<at::Tensor> inputs() const;
  // Returns for each source which of the inputs were drawn from it.
  std::vector<Draw> layout() const;

 private:
  const FunctionCall& call_;
  Draws draws_;
};

}  // namespace trireme::internal
