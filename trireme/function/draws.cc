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

Draws::Draws(ElementSources sources) : sources_(std::move(sources)), elements_(sources_.size()) {}

Draws::~Draws() {
  adjust(std::vector<size_t>(elements_.size(), 0));
}

void Draws::adjust(const std::vector<size_t>& counts) {
  for (size_t i = 0; i < elements_.size(); ++i) {
    for (; elements_[i].size() > counts[i]; elements_[i].pop_back()) {
      sources_[i]->put_back(std::move(elements_[i].back()));
    }
    while (elements_[i].size() < counts[i]) elements_[i].push_back(sources_[i]->draw());
  }
}

std::vector<size_t> Draws::counts() const {
  std::vector<size_t> counts;
  for (const auto& elements : elements_) counts.push_back(elements.size());
  return counts;
}

Element DrawnElements::draw() {
  if (++asked_ > kMaxDraws) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("a captured function draws more than ", kMaxDraws,
                             " elements in one step; a loop in it must not run until the end of "
                             "the data"),
                {"", name_});
  }
  if (elements_.empty()) throw Exhausted();
  // After the last element the body gets it again: the next ones most likely have the same shapes.
  return elements_[std::min(asked_, elements_.size()) - 1];
}

}  // namespace trireme::internal
