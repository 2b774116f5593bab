#include "trireme/placement/memory_use.h"

#include "absl/strings/match.h"
#include "trireme/graph/graph_builder.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {

MemoryUse::MemoryUse(const Plan& plan, int replicas) : plan_(plan), replicas_(replicas) {
  for (size_t i = 0; i < plan_.variable_values.size(); ++i) {
    const int64_t value = plan_.variable_values[i];
    if (value >= 0) variables_[storage(value)] = static_cast<uint32_t>(i);
  }
  for (int i = 0; i < plan_.graph->def.nodes_size(); ++i) {
    const proto::Node& node = plan_.graph->def.nodes(i);
    for (int argument : written_by(i)) {
      for_each_value(node.arguments(argument), [&](int64_t value) {
        const std::optional<uint32_t> variable = variable_of(value);
        if (!variable) {
          written_.insert(storage(value));
        } else if (replica_of(node) >= 0) {
          written_in_replicas_.insert(*variable);
        }
      });
    }
  }
}

std::optional<uint32_t> MemoryUse::variable_of(int64_t value) const {
  const auto found = variables_.find(storage(value));
  return found == variables_.end() ? std::nullopt : std::optional<uint32_t>(found->second);
}

// The fused optimizers may scale the gradients in place, but are never told to.
std::vector<int> MemoryUse::written_by(int node) const {
  std::vector<int> written = writable_arguments(plan_.nodes[node].op);
  if (absl::StartsWith(plan_.graph->def.nodes(node).op(), "aten::_fused_")) std::erase(written, 1);
  return written;
}

std::optional<int64_t> MemoryUse::view_base(int index) const {
  if (plan_.nodes[index].writes) return std::nullopt;
  const proto::Node& node = plan_.graph->def.nodes(index);
  std::optional<int64_t> base;
  for (const auto& result : node.results()) {
    for_each_value(result, [&](int64_t made) {
      for (const auto& argument : node.arguments()) {
        for_each_value(argument, [&](int64_t value) {
          if (!base && storage(value) == storage(made)) base = value;
        });
      }
    });
  }
  return base;
}

}  // namespace trireme::internal
