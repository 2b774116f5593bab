#pragma once

#include <string>

namespace trireme::internal {

// Logs a warning, unless this process has logged the same text before. Thread-safe.
void warn_once(const std::string& text);

}  // namespace trireme::internal
