#include "trireme/data/element_batches.h"

#include <ATen/ops/stack.h>

#include <utility>
#include <vector>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// Batches elements that are not rows of the source.
class Batches : public Stream<Element> {
 public:
  Batches(BatchSize batch, StreamPtr<Element> input) : batch_(batch), input_(std::move(input)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(const auto elements, take_batch(*input_, batch_));
    if (elements.empty()) return std::nullopt;
    Element batch;
    for (size_t i = 0; i < elements[0].size(); ++i) {
      std::vector<at::Tensor> tensors;
      for (const Element& element : elements) tensors.push_back(element[i]);
      batch.push_back(at::stack(tensors));
    }
    return batch;
  }
  Skipped skip(int64_t count) override { return skip_batches(*input_, batch_, count); }

 private:
  const BatchSize batch_;
  const StreamPtr<Element> input_;
};

}  // namespace

StreamPtr<Element> open_batches(BatchSize batch, StreamPtr<Element> input) {
  return std::make_unique<Batches>(batch, std::move(input));
}

}  // namespace trireme::internal
