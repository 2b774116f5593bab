// The search for the number of elements that a step draws. A call with an iterator starts with the
// numbers of an earlier call, or with none. Each attempt runs the body, which sees the elements
// drawn so far and gets the last one again if it asks for more. After a run it is known how many it
// asked for:
//
// - As many as were drawn: the capture is good. The self-check runs the body again and must find
//   the same numbers; otherwise the function is rejected.
// - Another number: that many are drawn, or the rest is put back, and the next attempt begins.
// - The body stopped at a source of which no element was drawn yet. It might have asked for more
//   after that, so the next attempt draws one there and puts nothing back.
//
// A body with n sources needs up to n attempts to get past the first draw of each. After that, two
// attempts are usual; more are needed if the shapes of the elements decide how many the body asks
// for.
#include "trireme/function/draw_discovery.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme::internal {
namespace {

// Attempts in addition to one for each source.
constexpr size_t kDrawAttempts = 8;

Error draws_vary(const std::string& function) {
  return Error(ErrorCode::kFailedPrecondition,
               absl::StrCat("function '", function,
                            "' cannot be captured: it does not draw the same number of elements "
                            "from its iterators each time. The number of elements that a step "
                            "draws may depend on its arguments only"));
}

// Returns the source that has fewer than `counts` elements left. Elements are drawn from one source
// after the other, so the first that lacks some has ended.
size_t ended_source(const DrawnCall& call, const std::vector<size_t>& counts) {
  const std::vector<size_t> drawn = call.draws().counts();
  size_t ended = 0;
  while (drawn[ended] >= counts[ended]) ++ended;
  return ended;
}

// Returns the error for a source that has fewer than `counts` elements left.
Error end_of_data(const std::string& function, const DrawnCall& call, size_t ended,
                  const std::vector<size_t>& counts) {
  const std::vector<size_t> drawn = call.draws().counts();
  const std::string left = drawn[ended] == 0
                               ? "has no more elements"
                               : absl::StrCat("has only ", drawn[ended], " of the ", counts[ended],
                                              " elements that the step draws");
  return Error(ErrorCode::kEndOfData,
               absl::StrCat("argument ", call.call().source_arguments[ended], ", ",
                            call.call().sources[ended]->name(), ", ", left,
                            "; catch END_OF_DATA where the function is called, or add repeat() to "
                            "the dataset to start over"),
               {"", absl::StrCat("function '", function, "'")});
}

}  // namespace

std::vector<at::Tensor> DrawingBody::operator()(const std::vector<at::Tensor>& inputs) {
  const TensorCursor::Drawn drawn = make_drawn_elements(inputs);
  TensorCursor cursor(inputs, &drawn);
  std::vector<at::Tensor> outputs;
  bool ended = false;  // true if the body ran to its end
  try {
    outputs = call_.call().body(cursor);
    ended = true;
  } catch (const DrawnElements::Exhausted&) {
  }
  check_counts(drawn, ended);
  return outputs;
}

TensorCursor::Drawn DrawingBody::make_drawn_elements(const std::vector<at::Tensor>& inputs) const {
  const FunctionCall& call = call_.call();
  auto next = inputs.begin() + static_cast<ptrdiff_t>(call.tensors.size());
  TensorCursor::Drawn drawn;
  for (size_t i = 0; i < call.sources.size(); ++i) {
    std::vector<Element> elements;
    for (const Element& element : call_.draws().elements()[i]) {
      const auto end = next + static_cast<ptrdiff_t>(element.size());
      elements.emplace_back(next, end);
      next = end;
    }
    const auto& source = call.sources[i];
    drawn[source] = std::make_shared<DrawnElements>(source->name(), std::move(elements));
  }
  return drawn;
}

void DrawingBody::check_counts(const TensorCursor::Drawn& drawn, bool ended) {
  const std::vector<size_t> counts = call_.draws().counts();
  std::vector<size_t> asked;
  accepts_end_.clear();
  for (size_t i = 0; i < counts.size(); ++i) {
    asked.push_back(drawn.at(call_.call().sources[i])->asked());
    accepts_end_.push_back(drawn.at(call_.call().sources[i])->accepts_end());
    // A body that was cut short might have asked for more.
    if (!ended) asked[i] = std::max(asked[i], counts[i]);
  }
  if (asked == counts) {
    settled_ = true;
  } else if (settled_) {
    throw draws_vary(function_);
  } else {
    throw DrawCountMismatch{asked, accepts_end_};
  }
}

// Allows one attempt for the first element of each source, and more for the numbers to settle.
DrawDiscovery::DrawDiscovery(const std::string& function, DrawnCall& call)
    : function_(function),
      call_(call),
      attempts_left_(call.call().sources.size() + kDrawAttempts) {}

void DrawDiscovery::redraw(const DrawCountMismatch& others) {
  if (attempts_left_-- == 0) throw draws_vary(function_);
  try {
    call_.adjust(others.counts);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEndOfData) throw;
    const size_t ended = ended_source(call_, others.counts);
    if (others.accepts_end[ended]) throw EndAccepted();
    throw end_of_data(function_, call_, ended, others.counts);
  }
}

}  // namespace trireme::internal
