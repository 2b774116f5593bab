#pragma once

#include <cstdint>
#include <iterator>
#include <string>

#include "absl/strings/str_format.h"

namespace trireme {

// Formats a number of bytes for people: "16.0 MiB".
inline std::string format_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const int decimals = unit == 0 || value >= 100 ? 0 : 1;
  return absl::StrFormat("%.*f %s", decimals, value, kUnits[unit]);
}

}  // namespace trireme
