#pragma once

#include <vector>

#include "trireme/runtime/task_server.h"

namespace trireme {

// What a full server offers: the services of every module that has some. A module that gains a
// service is added here, and nowhere else.
std::vector<ServiceFactory> all_services();

}  // namespace trireme
