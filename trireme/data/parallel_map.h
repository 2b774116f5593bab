#pragma once

#include <cstdint>

#include "trireme/data/made_ahead.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Gives what `map` makes of the elements of `input`, in their order. Maps up to `threads` elements
// at the same time, on threads of its own. The first element has the number `first_number`.
StreamPtr<Element> open_parallel_map(int threads, StreamPtr<Element> input, uint64_t first_number,
                                     NumberedMap map);

}  // namespace trireme::internal
