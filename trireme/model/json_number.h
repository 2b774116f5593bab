#pragma once

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

// Numbers in JSON texts, where NaN and the infinities are not numbers.
namespace trireme::internal {

// Returns the number, or a string if it is not finite. Digits are as many as it takes to read the
// same number again.
inline nlohmann::json json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// Returns the number that json_number() was given. Throws nlohmann::json::exception for others.
inline double read_json_number(const nlohmann::json& json) {
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  return json.get<double>();
}

}  // namespace trireme::internal
