#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace trireme {

// Every dtype has a number of ours on the wire and on disk, so that a LibTorch which renumbers its
// own changes nothing. Quantized dtypes have none: their scales would be lost.
absl::StatusOr<uint8_t> dtype_to_wire(c10::ScalarType dtype);
absl::StatusOr<c10::ScalarType> dtype_from_wire(uint8_t code);

// As LibTorch users write it: "float32", "int64", "bfloat16".
std::string dtype_name(c10::ScalarType dtype);

}  // namespace trireme
