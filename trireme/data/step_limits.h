#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "trireme/data/dataset_step.h"

namespace trireme::internal {

// Limits for what a definition, which may come from a peer, can make a worker do.
inline constexpr double kMostBytes = 64.0 * (1 << 30);  // what one step holds at once
inline constexpr double kMostReads = 4.0 * (1 << 30);   // reads from the source for one element

// Return an error unless a number is at least `least`, and unless a step may hold so many bytes.
absl::Status check_count(const char* what, int64_t count, int64_t least);
absl::Status check_bytes(double bytes);

// Returns the smaller number of elements, where `count` may be unknown.
inline double at_most(int64_t count, int64_t limit) {
  const bool is_limit = count == kUnknownCount || count > limit;
  return static_cast<double>(is_limit ? limit : count);
}

}  // namespace trireme::internal
