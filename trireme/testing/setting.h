#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace trireme {

// How much a test does: little by default, and what the environment says in the long checks.
inline int64_t setting(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoll(text);
}

}  // namespace trireme
