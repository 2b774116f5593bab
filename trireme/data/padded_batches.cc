#include "trireme/data/padded_batches.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/batch_items.h"
#include "trireme/data/example_element.h"
#include "trireme/data/step_limits.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

// Returns true if tensors of this dtype can hold the number.
bool can_hold(c10::ScalarType dtype, double value) {
  if (!c10::isIntegralType(dtype, /*includeBool=*/true)) return true;
  if (value != std::floor(value)) return false;
  if (dtype == at::kBool) return value == 0 || value == 1;
  const bool is_signed = c10::isSignedType(dtype);
  const int bits = static_cast<int>(c10::elementSize(dtype)) * 8 - (is_signed ? 1 : 0);
  const double end = std::ldexp(1.0, bits);
  return value < end && value >= (is_signed ? -end : 0);
}

// Copies a tensor to the beginning of another one, along every axis.
void copy_to_beginning(const at::Tensor& from, at::Tensor to) {
  const bool is_prefix =
      from.is_contiguous() && from.dim() > 0 && from.sizes().slice(1) == to.sizes().slice(1);
  if (is_prefix && to.is_contiguous()) {
    if (from.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    return;
  }
  for (int64_t axis = 0; axis < from.dim(); ++axis) to = to.narrow(axis, 0, from.size(axis));
  to.copy_(from);
}

class PaddedBatches : public Stream<Element> {
 public:
  PaddedBatches(DatasetStepPtr step, StreamPtr<Element> input)
      : step_(std::move(step)),
        def_(step_->def.padded_batch()),
        batch_{def_.size(), def_.drop_remainder()},
        input_(std::move(input)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(const std::vector<Element> elements, take_batch(*input_, batch_));
    if (elements.empty()) return std::nullopt;
    absl::StatusOr<Element> batch = stack(elements);
    if (batch.ok()) return *std::move(batch);
    return with_origin(batch.status(),
                       {"", absl::StrCat("dataset step ", step_->number, " 'padded_batch'")});
  }
  Skipped skip(int64_t count) override { return skip_batches(*input_, batch_, count); }

 private:
  absl::StatusOr<Element> stack(const std::vector<Element>& elements) const {
    Element batch;
    for (size_t i = 0; i < elements[0].size(); ++i) {
      std::vector<at::Tensor> tensors;
      for (const Element& element : elements) tensors.push_back(element[i]);
      TRIREME_ASSIGN_OR_RETURN(batch.emplace_back(), stack_filled(i, tensors));
    }
    return batch;
  }

  // Stacks the tensors with index `index` of the elements of a batch.
  absl::StatusOr<at::Tensor> stack_filled(size_t index,
                                          const std::vector<at::Tensor>& tensors) const {
    TRIREME_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, filled_sizes(index, tensors));
    const auto is_full = [&](const at::Tensor& tensor) { return tensor.sizes() == sizes; };
    if (std::ranges::all_of(tensors, is_full)) return at::stack(tensors);
    const c10::ScalarType dtype = tensors[0].scalar_type();
    if (!can_hold(dtype, def_.value())) {
      return invalid_argument(absl::StrCat("tensor ", index, " has dtype ", dtype_name(dtype),
                                           ", which cannot hold the value ", def_.value(),
                                           " that fills up; choose another value"));
    }
    sizes.insert(sizes.begin(), static_cast<int64_t>(tensors.size()));
    // A long element and a wide one may make a batch that is far larger than both.
    TRIREME_RETURN_IF_ERROR(check_bytes(bytes_of({{dtype, sizes}})));
    const at::Tensor batch = at::full(sizes, def_.value(), tensors[0].options());
    for (size_t i = 0; i < tensors.size(); ++i) {
      copy_to_beginning(tensors[i], batch.select(0, static_cast<int64_t>(i)));
    }
    return batch;
  }

  // Returns the shape that tensors are filled up to.
  absl::StatusOr<std::vector<int64_t>> filled_sizes(size_t index,
                                                    const std::vector<at::Tensor>& tensors) const {
    std::vector<int64_t> given(tensors[0].dim(), -1);
    if (def_.tensors_size() > 0) {
      const auto& sizes = def_.tensors(static_cast<int>(index)).sizes();
      given.assign(sizes.begin(), sizes.end());
    }
    std::vector<int64_t> filled = given;
    for (const at::Tensor& tensor : tensors) {
      for (size_t axis = 0; axis < given.size(); ++axis) {
        const int64_t size = tensor.size(static_cast<int64_t>(axis));
        filled[axis] = std::max(filled[axis], size);
        if (given[axis] == -1 || size <= given[axis]) continue;
        return invalid_argument(absl::StrCat(
            "tensor ", index, " of an element has the shape ", format_shape(tensor.sizes()),
            ", which is larger than ", format_shape(given),
            ", the shape to fill it up to; give larger sizes, or -1 for the largest in a batch"));
      }
    }
    return filled;
  }

  const DatasetStepPtr step_;
  const proto::DatasetStep::PaddedBatch& def_;
  const BatchSize batch_;
  const StreamPtr<Element> input_;
};

}  // namespace

StreamPtr<Element> open_padded_batches(DatasetStepPtr step, StreamPtr<Element> input) {
  return std::make_unique<PaddedBatches>(std::move(step), std::move(input));
}

}  // namespace trireme::internal
