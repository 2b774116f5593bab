#include "trireme/coordinator/element_shapes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/worker_resource.h"
#include "trireme/data/example_element.h"
#include "trireme/tensor/dtype.h"

namespace trireme::internal {
namespace {

// Limit for an element, because captures allocate zeros of its shape.
constexpr double kMostBytes = 1 << 30;

}  // namespace

void set_shape(const std::vector<at::Tensor>& element, ElementShape& shape) {
  for (const at::Tensor& tensor : element) {
    proto::TensorType* type = shape.add_tensors();
    type->set_dtype(static_cast<int>(tensor.scalar_type()));
    for (int64_t size : tensor.sizes()) type->add_sizes(size);
  }
}

absl::StatusOr<ElementSpec> parse_spec(const ElementShape& shape) {
  ElementSpec spec;
  for (const proto::TensorType& type : shape.tensors()) {
    TensorSpec& tensor = spec.emplace_back();
    tensor.dtype = static_cast<c10::ScalarType>(type.dtype());
    TRIREME_RETURN_IF_ERROR(dtype_to_wire(tensor.dtype).status());
    tensor.sizes = {type.sizes().begin(), type.sizes().end()};
    if (std::ranges::any_of(tensor.sizes, [](int64_t size) { return size < 0; })) {
      return make_status(ErrorCode::kInvalidArgument, "a tensor of an element has a negative size");
    }
  }
  if (bytes_of(spec) > kMostBytes) {
    return make_status(ErrorCode::kInvalidArgument, absl::StrCat("elements ", to_string(spec),
                                                                 " are too large to be drawn by a "
                                                                 "worker; make batches smaller"));
  }
  return spec;
}

absl::StatusOr<DrawnShapes> parse_drawn(
    const ClosureResponse& response,
    const std::vector<std::shared_ptr<WorkerResource>>& resources) {
  if (response.drawn_size() != static_cast<int>(resources.size())) {
    return make_status(ErrorCode::kInternal,
                       "the worker drew from a different number of iterators than the closure has");
  }
  DrawnShapes drawn;
  for (int i = 0; i < response.drawn_size(); ++i) {
    std::vector<ElementSpec>& elements = drawn[resources[i]->id()];
    for (const ElementShape& shape : response.drawn(i).elements()) {
      TRIREME_ASSIGN_OR_RETURN(ElementSpec spec, parse_spec(shape));
      elements.push_back(std::move(spec));
    }
  }
  return drawn;
}

}  // namespace trireme::internal
