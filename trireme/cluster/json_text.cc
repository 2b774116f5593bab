#include "trireme/cluster/json_text.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/cluster/text.h"

namespace trireme::internal {
namespace {

// A valid spec is nested three deep. The limit keeps the parser's recursion bounded.
constexpr int kMostDepth = 32;

}  // namespace

nlohmann::json parse_json(const std::string& text, const std::string& what) {
  using nlohmann::json;
  std::vector<std::set<std::string>> keys;  // keys of each object that is still open
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMostDepth) refuse(absl::StrCat(what, ": nested deeper than ", kMostDepth));
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      refuse(absl::StrCat(what, ": key '", value.get<std::string>(), "' is given twice"));
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    // The parser counts bytes from 1, and reports the byte at which it failed.
    const std::string before = text.substr(0, std::max<size_t>(error.byte, 1) - 1);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t column = before.size() - (before.rfind('\n') + 1) + 1;
    refuse(absl::StrCat(what, " is not valid JSON at line ", line, ", column ", column));
  } catch (const json::out_of_range&) {
    refuse(absl::StrCat(what, ": a number in it is too large"));
  }
}

}  // namespace trireme::internal
