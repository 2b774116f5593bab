#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

// Returns the bytes of memory that this process may use: the memory of the machine, or the limit of
// its container if that is lower.
uint64_t physical_memory();
// Returns the bytes of memory that this process can still take before others must give some up: the
// free memory of the machine, or the rest of the limit of its container if that is less.
uint64_t available_memory();

// Returns the number of cores that this process may use: those that it may run on, or the quota of
// its container, rounded down, if that is less. At least 1.
int usable_cores();

struct ProcessMemory {
  int64_t resident = 0;  // Bytes that the process holds now.
  int64_t peak = 0;      // Most bytes that the process has ever held.
};
// Returns the memory of a process. Throws Error if there is no such process.
ProcessMemory process_memory(pid_t pid);
// Returns the memory of this process.
ProcessMemory process_memory();

namespace internal {

// Returns the memory that a control group, given by its folder, can still take. Counts the pages of
// files, which the kernel takes back when they are needed, as free. Returns nullopt if the group
// has no limit.
std::optional<uint64_t> available_in_cgroup(const std::string& folder);
// Returns the number of cores, rounded down, whose time a control group may use. Returns nullopt if
// the group has no quota.
std::optional<int> cores_in_cgroup(const std::string& folder);

}  // namespace internal

}  // namespace trireme
