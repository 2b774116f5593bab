#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Joins the elements of several streams, and ends with the first that ends.
class Zipped : public Stream<Element> {
 public:
  explicit Zipped(std::vector<StreamPtr<Element>> inputs) : inputs_(std::move(inputs)) {}

  Next<Element> next() override {
    Element joined;
    for (const StreamPtr<Element>& input : inputs_) {
      if (ended_) return std::nullopt;
      TRIREME_ASSIGN_OR_RETURN(std::optional<Element> element, input->next());
      ended_ = !element;
      if (element) std::move(element->begin(), element->end(), std::back_inserter(joined));
    }
    return ended_ ? std::nullopt : std::optional<Element>(std::move(joined));
  }
  Skipped skip(int64_t count) override {
    if (ended_) return 0;
    int64_t skipped = count;
    for (const StreamPtr<Element>& input : inputs_) {
      TRIREME_ASSIGN_OR_RETURN(const int64_t items, input->skip(skipped));
      skipped = std::min(skipped, items);
    }
    ended_ = skipped < count;
    return skipped;
  }

 private:
  const std::vector<StreamPtr<Element>> inputs_;
  bool ended_ = false;
};

}  // namespace trireme::internal
