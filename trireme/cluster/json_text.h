#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace trireme::internal {

// Parses JSON that a person or a launcher wrote. Throws Error, which begins with `what` and gives
// the line and the column. Also rejects a key that is given twice, of which the parser would
// silently keep the last one, and numbers and nesting beyond sensible limits.
nlohmann::json parse_json(const std::string& text, const std::string& what);

}  // namespace trireme::internal
