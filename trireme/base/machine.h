#pragma once

#include <sys/types.h>

#include <cstdint>

namespace trireme {

// Bytes of memory that this process may use: what the machine has, or its container may.
uint64_t physical_memory();

// The bytes of memory that a process holds now, and the most that it has held. Throws Error when
// there is no such process.
struct ProcessMemory {
  int64_t resident = 0;
  int64_t peak = 0;
};
ProcessMemory process_memory(pid_t pid);
ProcessMemory process_memory();  // of this one

}  // namespace trireme
