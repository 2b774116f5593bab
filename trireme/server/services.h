#pragma once

#include <cstdint>
#include <vector>

#include "trireme/runtime/task_server.h"

namespace trireme {

// What a full server offers: the services of every module that has some. A module that gains a
// service is added here, and nowhere else. The limit is that of variables in bytes; 0: four fifths
// of the machine's memory.
std::vector<ServiceFactory> all_services(uint64_t memory_limit = 0);

}  // namespace trireme
