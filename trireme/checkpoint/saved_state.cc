#include "trireme/checkpoint/saved_state.h"

#include <algorithm>
#include <tuple>

namespace trireme::internal {

uint64_t SavedVariable::row_bytes() const {
  uint64_t bytes = c10::elementSize(dtype);
  for (size_t i = 1; i < sizes.size(); ++i) bytes *= static_cast<uint64_t>(sizes[i]);
  return bytes;
}

std::vector<int64_t> SavedVariable::sizes_of_rows(int64_t count) const {
  std::vector<int64_t> result = sizes;
  if (!result.empty()) result[0] = count;
  return result;
}

std::vector<TensorOfManifest> tensors_of(const Manifest& manifest) {
  std::vector<TensorOfManifest> tensors;
  for (const SavedVariable& variable : manifest.variables) {
    for (const SavedShard& shard : variable.shards) {
      tensors.push_back({&variable, &shard, &shard.contents});
      for (const SavedTensor& slot : shard.slots) tensors.push_back({&variable, &shard, &slot});
    }
  }
  const auto key = [](const TensorOfManifest& entry) {
    const SavedTensor& tensor = *entry.tensor;
    return std::tie(tensor.file, tensor.offset, tensor.bytes, tensor.name);
  };
  std::sort(tensors.begin(), tensors.end(),
            [&](const TensorOfManifest& a, const TensorOfManifest& b) { return key(a) < key(b); });
  return tensors;
}

}  // namespace trireme::internal
