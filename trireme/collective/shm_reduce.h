#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/collective/call.h"

namespace trireme::internal {

// Returns the number of bytes that should be combined at a time, so that they stay in the cache of
// a core between the steps. It is a multiple of the size of a cache line.
int64_t shm_chunk_bytes(const CollectiveCall& call);

// Combines the values of a call at `values` with those at `sum`, and stores the results at `sum`.
// The memory must not overlap. `bytes` is at most shm_chunk_bytes().
void accumulate_values(const CollectiveCall& call, std::byte* sum, const std::byte* values,
                       int64_t bytes);
// Divides the sum over `ranks` ranks if the reduction of the call is a mean.
void finish_values(const CollectiveCall& call, std::byte* sum, int64_t bytes, int ranks);

}  // namespace trireme::internal
