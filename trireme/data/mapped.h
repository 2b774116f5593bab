#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/status.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Runs the graphs of a map or a filter on elements. There is one graph for each shape of the input.
// Thread-safe.
class ElementFunction {
 public:
  // `key` decides, together with the seed of the step, on random numbers.
  ElementFunction(DatasetStepPtr step, uint64_t key);
  ~ElementFunction();

  // Returns what the function makes of the element with this number.
  absl::StatusOr<Element> operator()(const Element& element, uint64_t number);

 private:
  struct Tuners;

  const DatasetStepPtr step_;
  const uint64_t seed_;
  const std::unique_ptr<Tuners> tuners_;
};

// Gives what the function of a map makes of the elements.
StreamPtr<Element> open_mapped(DatasetStepPtr step, uint64_t key, StreamPtr<Element> input);

// Gives the items for whose elements the function of a filter returns true.
template <typename T>
class Filtered : public Stream<T> {
 public:
  Filtered(DatasetStepPtr step, uint64_t key, StreamPtr<T> input,
           std::function<Element(const T&)> to_element)
      : function_(std::move(step), key),
        input_(std::move(input)),
        to_element_(std::move(to_element)) {}

  Next<T> next() override {
    while (true) {
      TRIREME_ASSIGN_OR_RETURN(std::optional<T> item, input_->next());
      if (!item) return std::nullopt;
      TRIREME_ASSIGN_OR_RETURN(const Element kept, function_(to_element_(*item), number_++));
      if (kept[0].template item<bool>()) return item;
    }
  }
  Skipped skip(int64_t count) override {
    for (int64_t i = 0; i < count; ++i) {
      TRIREME_ASSIGN_OR_RETURN(const std::optional<T> item, next());
      if (!item) return i;
    }
    return count;
  }

 private:
  ElementFunction function_;
  const StreamPtr<T> input_;
  const std::function<Element(const T&)> to_element_;
  uint64_t number_ = 0;  // number of the next element of the input
};

}  // namespace trireme::internal
