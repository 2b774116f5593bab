#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/exec/part_run.h"
#include "trireme/runtime/session.pb.h"
#include "trireme/runtime/tensor_lists.h"

// Values that cross to another task, in the messages that carry them.
namespace trireme::internal {

// A value on its way to another task.
struct CrossingValue {
  uint32_t edge = 0;
  Pieces pieces;
};

using Crossings = google::protobuf::RepeatedPtrField<Crossing>;

void append_crossings(std::vector<CrossingValue> values, Crossings& crossings,
                      std::vector<at::Tensor>& message);
absl::StatusOr<std::vector<CrossingValue>> read_crossings(const Crossings& crossings,
                                                          TensorReader& reader);

}  // namespace trireme::internal
