#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace trireme {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Lines go to standard error. Every line is one that its reader can act on. Thread-safe.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& line);

// "debug", "info", "warning", "error" or "off"; throws Error on anything else.
LogLevel parse_log_level(const std::string& name);

template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (log_enabled(level)) log_line(level, absl::StrCat(parts...));
}

template <typename... Parts>
void log_debug(const Parts&... parts) {
  log(LogLevel::kDebug, parts...);
}
template <typename... Parts>
void log_info(const Parts&... parts) {
  log(LogLevel::kInfo, parts...);
}
template <typename... Parts>
void log_warning(const Parts&... parts) {
  log(LogLevel::kWarning, parts...);
}
template <typename... Parts>
void log_error(const Parts&... parts) {
  log(LogLevel::kError, parts...);
}

}  // namespace trireme
