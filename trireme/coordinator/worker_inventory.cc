#include "trireme/coordinator/worker_inventory.h"

namespace trireme::internal {

WorkerInventory::Item WorkerInventory::first_missing(
    const std::vector<ClosurePtr>& closures) const {
  for (const ClosurePtr& closure : closures) {
    if (!programs_.contains(closure->current->id)) return {.program = closure->current};
    if (closure->resources.empty()) continue;
    for (const auto& variant : closure->current->variants.get()) {
      if (!programs_.contains(variant->id)) return {.program = variant};
    }
    for (const auto& resource : closure->resources) {
      if (!resources_.contains(resource->id())) return {.resource = resource};
    }
  }
  return {};
}

void WorkerInventory::add(const Item& item) {
  if (item.program != nullptr) programs_.insert(item.program->id);
  if (item.resource != nullptr) resources_.insert(item.resource->id());
}

std::vector<uint32_t> WorkerInventory::drop_unused_programs(const ProgramsInUse& in_use) {
  std::vector<uint32_t> gone = in_use.gone(programs_);
  for (uint32_t program : gone) programs_.erase(program);
  return gone;
}

std::vector<uint64_t> WorkerInventory::drop_unused_resources(const WorkerResources& resources) {
  std::vector<uint64_t> gone = resources.gone(resources_);
  for (uint64_t resource : gone) resources_.erase(resource);
  return gone;
}

void WorkerInventory::clear() {
  programs_.clear();
  resources_.clear();
}

}  // namespace trireme::internal
