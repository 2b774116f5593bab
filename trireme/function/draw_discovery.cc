#include "trireme/function/draw_discovery.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme::internal {
namespace {

constexpr size_t kDrawAttempts = 8;

Error draws_vary(const std::string& function) {
  return Error(ErrorCode::kFailedPrecondition,
               absl::StrCat("function '", function,
                            "' cannot be captured: it does not draw the same number of elements "
                            "from its iterators each time. What a step draws must follow from "
                            "its arguments"));
}

}  // namespace

std::vector<at::Tensor> DrawingBody::operator()(const std::vector<at::Tensor>& inputs) {
  const TensorCursor::Drawn drawn = stand_ins(inputs);
  TensorCursor cursor(inputs, &drawn);
  std::vector<at::Tensor> outputs;
  bool ended = false;
  try {
    outputs = call_.call().body(cursor);
    ended = true;
  } catch (const DrawnElements::Exhausted&) {
  }
  check_counts(drawn, ended);
  return outputs;
}

TensorCursor::Drawn DrawingBody::stand_ins(const std::vector<at::Tensor>& inputs) const {
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
  for (size_t i = 0; i < counts.size(); ++i) {
    asked.push_back(drawn.at(call_.call().sources[i])->asked());
    if (!ended) asked[i] = std::max(asked[i], counts[i]);  // it might have asked on
  }
  if (asked == counts) {
    settled_ = true;
  } else if (settled_) {
    throw draws_vary(function_);
  } else {
    throw DrawOthers{asked};
  }
}

// The first element of each source, then how many there are, then shapes that change it.
DrawDiscovery::DrawDiscovery(const std::string& function, DrawnCall& call)
    : function_(function),
      call_(call),
      attempts_left_(call.call().sources.size() + kDrawAttempts) {}

void DrawDiscovery::draw_others(const DrawOthers& others) {
  if (attempts_left_-- == 0) throw draws_vary(function_);
  call_.adjust(others.counts);
}

}  // namespace trireme::internal
