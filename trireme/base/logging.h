#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace trireme {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Lines are written to standard error. Log only what a reader can act on. Thread-safe.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& line);

// Parses "debug", "info", "warning", "error" or "off". Throws Error on anything else.
LogLevel parse_log_level(const std::string& name);

// Logs the concatenated parts if the level is enabled: log_info(task, " has ", count, " steps").
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
