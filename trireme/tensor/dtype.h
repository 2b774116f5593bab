#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace trireme {

// Convert between a dtype and its code on the wire and on disk. The codes are Trireme's own, so
// they stay the same if LibTorch renumbers its dtypes. Quantized dtypes have no code, because their
// scales would be lost.
absl::StatusOr<uint8_t> dtype_to_wire(c10::ScalarType dtype);
absl::StatusOr<c10::ScalarType> dtype_from_wire(uint8_t code);

// Returns the name that PyTorch users know: "float32", "int64", "bfloat16".
std::string dtype_name(c10::ScalarType dtype);

}  // namespace trireme
