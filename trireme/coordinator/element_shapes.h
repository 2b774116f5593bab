#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/stand_ins.h"
#include "trireme/data/element.h"

// Conversion of element shapes to and from the messages of coordinators and workers.
namespace trireme::internal {

// Writes the shapes and types of the element's tensors to `shape`.
void set_shape(const std::vector<at::Tensor>& element, ElementShape& shape);
// Reads an element's spec. Checks it, since `shape` comes from the network and may be hostile.
absl::StatusOr<ElementSpec> parse_spec(const ElementShape& shape);
// Reads the shapes of the elements that a worker has drawn from the resources of a closure. Checks
// them in the same way.
absl::StatusOr<DrawnShapes> parse_drawn(
    const ClosureResponse& response, const std::vector<std::shared_ptr<WorkerResource>>& resources);

}  // namespace trireme::internal
