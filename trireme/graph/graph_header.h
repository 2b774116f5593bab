#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "trireme/graph/graph.pb.h"

// Checks the parts of a graph that come before its nodes: the format, the numbers of values,
// constants and inputs, and the types of tensors. A graph may come from an untrusted peer, so all
// of them have limits.
namespace trireme::internal {

inline constexpr int kMaxValues = 4 << 20;

// Checks everything but the nodes and the values. `constants` is the number of tensors that came
// with the graph.
absl::Status check_header(const proto::GraphDef& def, size_t constants);

// Checks that a tensor of this type can exist, as far as dtype and dimensions go.
absl::Status check_type(const proto::TensorType& type);

// Returns true if a tensor of this type is not empty and fills its memory without gaps, in some
// order of its dimensions.
bool is_dense(const proto::TensorType& type);

}  // namespace trireme::internal
