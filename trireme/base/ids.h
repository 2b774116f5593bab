#pragma once

#include <cstdint>
#include <string>

namespace trireme {

// Tells one life of a process or server from the next: random, never zero, new at each start.
uint64_t new_incarnation();

// An incarnation as people see it, in hexadecimal.
std::string format_incarnation(uint64_t incarnation);

}  // namespace trireme
