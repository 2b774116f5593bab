#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "trireme/capture/function_step.h"
#include "trireme/function/draws.h"
#include "trireme/function/function_call.h"

namespace trireme::internal {

// A call together with the elements that were drawn for it from the sources among its arguments.
// Its destructor puts the elements back unless keep() was called. The call must outlive it. Not
// thread-safe.
class DrawnCall {
 public:
  explicit DrawnCall(const FunctionCall& call) : call_(call), draws_(call.sources) {}

  const FunctionCall& call() const { return call_; }
  const Draws& draws() const { return draws_; }

  // Draws elements or puts them back until there are `counts[i]` of source `i`.
  void adjust(const std::vector<size_t>& counts) { draws_.adjust(counts); }
  // Like adjust(), but stops at the first source that has no more elements instead of throwing.
  void adjust_up_to(const std::vector<size_t>& counts);
  // Marks the elements as used, so that they are not put back. Must be called when the step begins.
  void keep() { draws_.keep(); }

  // Returns the signatures of the arguments, with the elements that were drawn from them.
  std::vector<std::string> signatures() const;
  // Returns the inputs of the step's graph: the tensors of the arguments, then those of the
  // elements.
  std::vector<at::Tensor> inputs() const;
  // Returns, for each source, which inputs are its elements. `accepts_end` is that of the graph.
  std::vector<Draw> layout(const std::vector<bool>& accepts_end) const;

 private:
  const FunctionCall& call_;
  Draws draws_;
};

}  // namespace trireme::internal
