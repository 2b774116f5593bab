#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "trireme/graph/graph.pb.h"

// Checks of the parts of a graph that come before its nodes: the format, the numbers of values,
// constants and inputs, and the types of tensors. A graph may come from anybody, so all have
// limits.
namespace trireme::internal {

inline constexpr int kMostValues = 4 << 20;

// Checks all but the nodes and the values. `constants` is the number of tensors that came with it.
absl::Status check_header(const proto::GraphDef& def, size_t constants);

absl::Status check_type(const proto::TensorType& type);

}  // namespace trireme::internal
