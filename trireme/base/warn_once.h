#pragma once

#include <string>

namespace trireme::internal {

// Logs a warning, unless this process has logged the same text before. With a key, logs it unless
// the process has logged a warning with this key. Thread-safe.
void warn_once(const std::string& text, const std::string& key = "");

}  // namespace trireme::internal
