#include "trireme/placement/variable_copies.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

namespace trireme::internal {

uint32_t VariableCopies::of_replica(uint32_t variable, int replica) {
  std::vector<uint32_t>& copies = of_replicas_[variable];
  if (copies.empty()) {
    const std::vector<c10::Device>& devices = holders_[variable];
    const std::vector<uint32_t>& held = held_[variable];
    for (size_t i = 0; i < replicas_.size(); ++i) {
      const int to = static_cast<int>(i);
      const c10::Device device = replicas_[i];
      const auto here = std::ranges::find(devices, device);
      copies.push_back(here == devices.end() ? graph_.move(held.front(), device, to)
                                             : graph_.clone(held[here - devices.begin()], to));
    }
  }
  return copies[replica];
}

bool VariableCopies::merge(uint32_t variable) {
  const auto found = of_replicas_.find(variable);
  if (found == of_replicas_.end()) return false;
  const std::vector<uint32_t> copies = std::move(found->second);
  of_replicas_.erase(found);
  const uint32_t target = held_[variable].front();
  const proto::TensorType type = graph_.def().values(static_cast<int>(target)).type();
  const auto dtype = static_cast<c10::ScalarType>(type.dtype());
  const c10::Device first = holders_[variable].front();
  const auto on_first = [&](size_t replica) {
    return replicas_[replica] == first ? copies[replica] : graph_.move(copies[replica], first, -1);
  };
  std::vector<uint32_t> merging{on_first(0)};
  if (c10::isFloatingType(dtype) || c10::isComplexType(dtype)) {
    for (size_t i = 1; i < copies.size(); ++i) merging.push_back(on_first(i));
  }
  const uint32_t merged = merging.size() == 1 ? merging[0] : graph_.mean(merging, type);
  graph_.assign(target, merged);
  copy_to_others(variable, merged);
  return true;
}

void VariableCopies::copy_to_others(uint32_t variable, uint32_t value) {
  const std::vector<uint32_t>& held = held_[variable];
  for (size_t i = 1; i < held.size(); ++i) {
    graph_.assign(held[i], graph_.move(value, holders_[variable][i], -1));
  }
}

}  // namespace trireme::internal
