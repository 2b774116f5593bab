#pragma once

#include <cstddef>

namespace trireme {

// Copies past the caches, where the processor can: for the parts of something so large that nothing
// of it would still be in a cache when it is read. That saves reading what is overwritten, about a
// third of the time, and leaves the caches to others.
void stream_copy(void* to, const void* from, size_t bytes);

}  // namespace trireme
