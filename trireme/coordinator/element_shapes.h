#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/data/element.h"

// What elements look like, as coordinators and workers tell each other.
namespace trireme::internal {

void set_shape(const std::vector<at::Tensor>& element, ElementShape& shape);
// From data that anybody may have sent.
absl::StatusOr<ElementSpec> parse_spec(const ElementShape& shape);

}  // namespace trireme::internal
