#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "trireme/graph/graph.pb.h"
#include "trireme/graph/graph_builder.h"

namespace trireme::internal {

// Returns the bytes of the elements of a tensor that is not sparse.
inline int64_t tensor_bytes(const proto::TensorType& type) {
  return element_count(type) *
         static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(type.dtype())));
}

}  // namespace trireme::internal
