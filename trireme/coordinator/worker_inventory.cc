#include "trireme/coordinator/worker_inventory.h"

namespace trireme::internal {

WorkerInventory::Item WorkerInventory::first_missing(
    const std::vector<ClosurePtr>& closures) const {
  for (const ClosurePtr& closure : closures) {
    if (!functions_.contains(closure->current->id)) return {.function = closure->current};
    if (closure->resources.empty()) continue;
    for (const auto& variant : closure->current->variants.get()) {
      if (!functions_.contains(variant->id)) return {.function = variant};
    }
    for (size_t i = 0; i < closure->resources.size(); ++i) {
      const AllottedElements& elements = closure->allotted[i];
      if (resources_.contains(elements.edition)) continue;
      return {
          .account = closure->accounts[i], .worker = elements.worker, .edition = elements.edition};
    }
  }
  return {};
}

void WorkerInventory::add(const Item& item) {
  if (item.function != nullptr) functions_.insert(item.function->id);
  if (item.account != nullptr) resources_.insert(item.edition);
}

std::vector<uint32_t> WorkerInventory::drop_unused_functions(const FunctionsInUse& in_use) {
  std::vector<uint32_t> unused = in_use.unused(functions_);
  for (uint32_t function : unused) functions_.erase(function);
  return unused;
}

std::vector<uint64_t> WorkerInventory::drop_unused_resources(const WorkerResources& resources) {
  std::vector<uint64_t> unused = resources.unused(resources_);
  for (uint64_t resource : unused) resources_.erase(resource);
  return unused;
}

void WorkerInventory::clear() {
  functions_.clear();
  resources_.clear();
}

}  // namespace trireme::internal
