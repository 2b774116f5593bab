#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace trireme::internal {

// JSON that a person or a launcher wrote. Throws Error, which begins with `what` and tells line and
// column; a key given twice is refused too, where the parser would keep the last one unasked, and
// numbers and depths that nobody means.
nlohmann::json parse_json(const std::string& text, const std::string& what);

}  // namespace trireme::internal
