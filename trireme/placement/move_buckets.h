#pragma once

#include <cstdint>
#include <vector>

#include "trireme/graph/graph.pb.h"

namespace trireme::internal {

// Size of the groups in which gradients are added up and moved. A group that is full leaves while
// backward makes the next one.
inline constexpr int64_t kBucketBytes = 25 << 20;

// Returns groups of values that can be moved as one: tensors without gaps, of the same dtype, about
// kBucketBytes in each group, at least two values. The others are left out.
std::vector<std::vector<int64_t>> move_buckets(const proto::GraphDef& def,
                                               const std::vector<int64_t>& values);

}  // namespace trireme::internal
