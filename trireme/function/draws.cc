#include "trireme/function/draws.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme::internal {
namespace {

// Most draws from one source in a capture. Ends a body that draws in a loop until its source is
// empty, which never happens in a capture.
constexpr size_t kMaxDraws = 1 << 16;

}  // namespace

Draws::Draws(ElementSources sources)
    : sources_(std::move(sources)), elements_(sources_.size()), numbers_(sources_.size()) {}

Draws::~Draws() {
  adjust(std::vector<size_t>(elements_.size(), 0));
}

void Draws::adjust(const std::vector<size_t>& counts) {
  for (size_t i = 0; i < elements_.size(); ++i) {
    while (elements_[i].size() > counts[i]) {
      sources_[i]->put_back({std::move(elements_[i].back()), numbers_[i].back()});
      elements_[i].pop_back();
      numbers_[i].pop_back();
    }
    while (elements_[i].size() < counts[i]) {
      NumberedElement drawn = sources_[i]->draw();
      elements_[i].push_back(std::move(drawn.element));
      numbers_[i].push_back(drawn.number);
    }
  }
}

std::vector<size_t> Draws::counts() const {
  std::vector<size_t> counts;
  for (const auto& elements : elements_) counts.push_back(elements.size());
  return counts;
}

NumberedElement DrawnElements::draw() {
  if (++asked_ > kMaxDraws) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("a captured function draws more than ", kMaxDraws,
                             " elements in one step; a loop in it must not run until the end of "
                             "the data"),
                {"", name_});
  }
  if (elements_.empty()) throw Exhausted();
  // After the last element the body gets it again: the next ones most likely have the same shapes.
  const size_t index = std::min(asked_, elements_.size()) - 1;
  return {elements_[index], index};
}

}  // namespace trireme::internal
