#pragma once

#include <cstdint>

#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Gives the elements of `input`. A thread of its own makes up to `count` of them in advance.
StreamPtr<Element> open_prefetched(int64_t count, StreamPtr<Element> input);

}  // namespace trireme::internal
