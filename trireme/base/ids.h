#pragma once

#include <cstdint>
#include <string>

namespace trireme {

// Returns a random, non-zero incarnation. Every start of a process or server draws a new one, which
// distinguishes it from earlier and later processes at the same address.
uint64_t new_incarnation();

// Formats an incarnation for people: 16 hexadecimal digits.
std::string format_incarnation(uint64_t incarnation);

}  // namespace trireme
