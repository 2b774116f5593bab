#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace trireme::internal {

// Parses JSON from a file. Returns INVALID_ARGUMENT, with the place, if it is not valid, nested
// deeper than `depth`, or has a key twice in one object.
absl::StatusOr<nlohmann::json> parse_strict_json(std::string_view text, int depth);

// Returns true if the text is UTF-8, which JSON strings must be.
bool is_utf8(const std::string& text);

}  // namespace trireme::internal
