#pragma once

#include <cstdint>
#include <vector>

#include "trireme/runtime/task_server.h"

namespace trireme {

// Returns the services of a full server: those of every module that has one. A new service is added
// here, and nowhere else. `memory_limit` is the limit on the bytes of variables; 0 for four fifths
// of the machine's memory.
std::vector<ServiceFactory> all_services(uint64_t memory_limit = 0);

}  // namespace trireme
