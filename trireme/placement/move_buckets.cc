#include "trireme/placement/move_buckets.h"

#include <map>

#include "trireme/graph/graph_header.h"
#include "trireme/placement/tensor_bytes.h"

namespace trireme::internal {

std::vector<std::vector<int64_t>> move_buckets(const proto::GraphDef& def,
                                               const std::vector<int64_t>& values) {
  struct Open {
    std::vector<int64_t> values;
    int64_t bytes = 0;
  };
  std::map<int32_t, Open> open;  // the bucket of each dtype that takes the next value
  std::vector<std::vector<int64_t>> buckets;
  const auto close = [&](Open& bucket) {
    if (bucket.values.size() > 1) buckets.push_back(std::move(bucket.values));
    bucket = {};
  };
  for (int64_t value : values) {
    const proto::TensorType& type = def.values(static_cast<int>(value)).type();
    if (!is_dense(type)) continue;
    Open& bucket = open[type.dtype()];
    bucket.values.push_back(value);
    bucket.bytes += tensor_bytes(type);
    if (bucket.bytes >= kBucketBytes) close(bucket);
  }
  for (auto& [dtype, bucket] : open) close(bucket);
  return buckets;
}

}  // namespace trireme::internal
