#include "trireme/checkpoint/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {

absl::StatusOr<nlohmann::json> parse_strict_json(std::string_view text, int depth) {
  using nlohmann::json;
  std::vector<std::set<std::string>> keys;  // Keys of each object that is still open.
  const auto check = [&](int at, json::parse_event_t event, json& value) {
    if (at > depth) throw Error(ErrorCode::kInvalidArgument, "is nested too deeply");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("has the key '", value.get<std::string>(), "' twice"));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const Error& error) {
    return to_status(error);
  } catch (const json::parse_error& error) {
    return invalid_argument(absl::StrCat("is not valid JSON at byte ", error.byte));
  } catch (const json::exception&) {
    return invalid_argument("has a number that is too large");
  }
}

bool is_utf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace trireme::internal
