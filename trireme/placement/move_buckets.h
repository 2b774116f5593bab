#pragma once

#include <cstdint>
#include <vector>

#include "trireme/graph/graph.pb.h"

namespace trireme::internal {

// Returns groups of values that can be moved as one: tensors without gaps, of the same dtype, about
// 25 MiB in each group, at least two values. The others are left out.
std::vector<std::vector<int64_t>> move_buckets(const proto::GraphDef& def,
                                               const std::vector<int64_t>& values);

}  // namespace trireme::internal
