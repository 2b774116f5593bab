#pragma once

#include <cstdint>

namespace trireme {

// Lets this process open as many files as the system permits it, of which the usual setting allows
// 1024 until a process asks for more: every connection is one. Returns how many.
uint64_t raise_file_limit();

}  // namespace trireme
