#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/exec/part_run.h"
#include "trireme/runtime/session.pb.h"
#include "trireme/runtime/tensor_lists.h"

// Puts values that cross to another task into messages, and takes them out.
namespace trireme::internal {

// A value on its way to another task.
struct CrossingValue {
  uint32_t edge = 0;  // number of the cut edge, unique in the whole graph
  Pieces pieces;
};

using Crossings = google::protobuf::RepeatedPtrField<Crossing>;

// Adds the values to the message: their descriptions to `crossings`, their tensors to `message`.
void append_crossings(std::vector<CrossingValue> values, Crossings& crossings,
                      std::vector<at::Tensor>& message);
// Reads the values that append_crossings() wrote. Returns an error if tensors are missing.
absl::StatusOr<std::vector<CrossingValue>> read_crossings(const Crossings& crossings,
                                                          TensorReader& reader);

}  // namespace trireme::internal
