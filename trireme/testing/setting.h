#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace trireme {

// Returns the number in an environment variable, or `otherwise` if it is not set. Tests use it to
// decide how much to do: little by default, more in the long checks of CI.
inline int64_t setting(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoll(text);
}

}  // namespace trireme
