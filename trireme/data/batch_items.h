#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"

namespace trireme::internal {

// How elements are gathered to batches.
struct BatchSize {
  int64_t size = 1;
  bool drop_remainder = false;
};

// Draws the items of a batch. Returns fewer than its size at the end of the input, and none if the
// remainder is to be dropped.
template <typename T>
absl::StatusOr<std::vector<T>> take_batch(Stream<T>& input, const BatchSize& batch) {
  std::vector<T> items;
  while (static_cast<int64_t>(items.size()) < batch.size) {
    TRIREME_ASSIGN_OR_RETURN(std::optional<T> item, input.next());
    if (!item) {
      if (batch.drop_remainder) items.clear();
      break;
    }
    items.push_back(*std::move(item));
  }
  return items;
}

// Skips the items of batches. Returns the number of batches.
template <typename T>
Skipped skip_batches(Stream<T>& input, const BatchSize& batch, int64_t count) {
  int64_t wanted;
  if (__builtin_mul_overflow(count, batch.size, &wanted)) wanted = kEndless;
  TRIREME_ASSIGN_OR_RETURN(const int64_t items, input.skip(wanted));
  const bool has_remainder = items % batch.size != 0 && !batch.drop_remainder;
  return items / batch.size + (has_remainder ? 1 : 0);
}

}  // namespace trireme::internal
