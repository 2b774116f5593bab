#pragma once

#include <cstdint>

namespace trireme {

// Raises this process's limit on open files to the hard limit and returns it. If the system
// refuses, returns the old limit. Every connection is an open file, and the usual soft limit is
// only 1024.
uint64_t raise_file_limit();

}  // namespace trireme
