#include "trireme/ps/saved_image.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

TensorToSave tensor_to_save(std::string name, const at::Tensor& tensor) {
  return {std::move(name), tensor.scalar_type(), tensor.sizes().vec(), tensor.const_data_ptr(),
          tensor.nbytes()};
}

// Returns memory for the contents of a variable that is on an accelerator, otherwise an undefined
// tensor. It is not pinned, since LibTorch would keep pinned memory after the save.
at::Tensor host_memory_of(const StoredVariable& variable) {
  const at::Tensor& tensor = variable.tensor;
  if (tensor.is_cpu()) return {};
  return at::empty(tensor.sizes(), tensor.options().device(c10::kCPU));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SavedImage>> SavedImage::make(
    std::vector<std::shared_ptr<StoredVariable>> variables) {
  std::vector<TensorToSave> tensors;
  std::vector<at::Tensor> fetched;
  std::vector<StoredVariable::SavedOptimizer> optimizers;
  for (const auto& variable : variables) {
    TRIREME_ASSIGN_OR_RETURN(const at::Tensor memory,
                             try_call([&] { return host_memory_of(*variable); }));
    fetched.push_back(memory);
    tensors.push_back(tensor_to_save(variable->name, memory.defined() ? memory : variable->tensor));
    const auto& optimizer = optimizers.emplace_back(variable->saved_optimizer());
    for (size_t i = 0; i < optimizer.slots.size(); ++i) {
      tensors.push_back(tensor_to_save(
          absl::StrCat(variable->name, "#", optimizer.rule->slots()[i].name), optimizer.slots[i]));
    }
  }
  TRIREME_RETURN_IF_ERROR(check_tensors(tensors));
  return std::shared_ptr<const SavedImage>(new SavedImage(std::move(variables), std::move(fetched),
                                                          std::move(optimizers),
                                                          TensorFileLayout(std::move(tensors))));
}

SavedImage::SavedImage(std::vector<std::shared_ptr<StoredVariable>> variables,
                       std::vector<at::Tensor> fetched,
                       std::vector<StoredVariable::SavedOptimizer> optimizers,
                       TensorFileLayout layout)
    : variables_(std::move(variables)),
      fetched_(std::move(fetched)),
      optimizers_(std::move(optimizers)),
      layout_(std::move(layout)) {
  const uint64_t header = layout_.header().size();
  std::vector<Place> by_given(layout_.tensors().size());
  for (size_t i = 0; i < layout_.tensors().size(); ++i) {
    const TensorToSave& tensor = layout_.tensors()[i];
    Place& place = by_given[layout_.given(i)];
    place = {layout_.offset(i) - header, tensor.bytes, segments_.size(), 0};
    for (uint64_t at = 0; at < tensor.bytes;) {
      const uint64_t offset = place.offset + at;
      while (first_segments_.size() <= offset / kBlockBytes) {
        first_segments_.push_back(segments_.size());
      }
      const uint64_t bytes = std::min(tensor.bytes - at, kBlockBytes - offset % kBlockBytes);
      segments_.push_back({static_cast<const char*>(tensor.data) + at, offset, bytes});
      at += bytes;
    }
    place.segments = segments_.size() - place.first_segment;
  }
  first_segments_.push_back(segments_.size());
  auto next = by_given.begin();
  for (size_t i = 0; i < variables_.size(); ++i) {
    const auto end = next + 1 + optimizers_[i].slots.size();
    places_.emplace_back(next, end);
    next = end;
    indices_[variables_[i].get()] = i;
  }
}

void SavedImage::fetch(const StoredVariable& variable) const {
  const at::Tensor& memory = fetched_[indices_.find(&variable)->second];
  const at::NoGradGuard no_gradients;
  if (memory.defined()) memory.copy_(variable.tensor);
}

uint64_t SavedImage::fetched_bytes() const {
  uint64_t bytes = 0;
  for (const at::Tensor& memory : fetched_) bytes += memory.defined() ? memory.nbytes() : 0;
  return bytes;
}

const std::vector<SavedImage::Place>& SavedImage::places(const StoredVariable& variable) const {
  return places_[indices_.find(&variable)->second];
}

void SavedImage::describe(const std::vector<uint32_t>& crcs, const std::vector<double>& steps,
                          WaitSaveResponse& response) const {
  const auto describe_tensor = [&](const std::string& name, const Place& place,
                                   SavedTensorDef& tensor) {
    tensor.set_name(name);
    tensor.set_offset(layout_.header().size() + place.offset);
    tensor.set_bytes(place.bytes);
    uint32_t crc = crc32c(nullptr, 0);
    for (size_t i = place.first_segment; i < place.first_segment + place.segments; ++i) {
      crc = crc32c_combine(crc, crcs[i], segments_[i].bytes);
    }
    tensor.set_crc(crc);
  };
  for (size_t i = 0; i < variables_.size(); ++i) {
    const std::string& name = variables_[i]->name;
    SavedShardDef& shard = *response.add_shards();
    describe_tensor(name, places_[i][0], *shard.mutable_contents());
    const UpdateRule* rule = optimizers_[i].rule.get();
    if (rule == nullptr) continue;
    shard.set_rule(rule->name());
    for (const auto& [option, value] : rule->options()) {
      (*shard.mutable_options())[option] = value;
    }
    shard.set_step(steps[i]);
    const std::vector<Slot> slots = rule->slots();
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      shard.add_slot_names(slots[slot].name);
      describe_tensor(absl::StrCat(name, "#", slots[slot].name), places_[i][slot + 1],
                      *shard.add_slots());
    }
  }
}

uint32_t copy_with_crc(char* to, const char* from, uint64_t bytes) {
  constexpr uint64_t kCached = 256 << 10;  // small enough to be still in the cache for the checksum
  uint32_t crc = crc32c(nullptr, 0);
  for (uint64_t at = 0; at < bytes; at += kCached) {
    const uint64_t part = std::min(kCached, bytes - at);
    std::memcpy(to + at, from + at, part);
    crc = crc32c(to + at, part, crc);
  }
  return crc;
}

}  // namespace trireme::internal
