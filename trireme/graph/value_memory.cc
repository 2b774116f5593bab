#include "trireme/graph/value_memory.h"

#include <numeric>

namespace trireme::internal {

ValueMemory::ValueMemory(size_t values) : parent_(values) {
  std::iota(parent_.begin(), parent_.end(), 0u);
}

uint32_t ValueMemory::storage_of(uint32_t value) {
  // Halves the path on the way, so that later calls are short.
  while (parent_[value] != value) value = parent_[value] = parent_[parent_[value]];
  return value;
}

void ValueMemory::mark_written(int64_t value) {
  if (value >= 0) written_.insert(storage_of(value));
}

bool ValueMemory::is_written(int64_t value) {
  return value >= 0 && written_.contains(storage_of(value));
}

int64_t ValueMemory::mark_variable(int64_t value, int64_t variable) {
  return variables_.try_emplace(storage_of(value), variable).first->second;
}

int64_t ValueMemory::variable_of(int64_t value) {
  const auto found = value < 0 ? variables_.end() : variables_.find(storage_of(value));
  return found == variables_.end() ? -1 : found->second;
}

}  // namespace trireme::internal
