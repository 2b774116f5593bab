#pragma once

#include <cstdint>

namespace trireme {

// Bytes of memory that this process may use: what the machine has, or its container may.
uint64_t physical_memory();

}  // namespace trireme
