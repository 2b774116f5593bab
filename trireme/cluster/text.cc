#include "trireme/cluster/text.h"

#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace trireme::internal {

void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::optional<int> parse_int(std::string_view text) {
  if (text.empty() || !absl::ascii_isdigit(text.front())) return std::nullopt;
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stopped != end) return std::nullopt;
  return value;
}

bool is_name(std::string_view text) {
  if (text.empty() || absl::ascii_isdigit(text.front())) return false;
  for (const char c : text) {
    if (!absl::ascii_isalnum(c) && c != '_') return false;
  }
  return true;
}

std::string to_lower(std::string text) {
  absl::AsciiStrToLower(&text);
  return text;
}

std::string count(int number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

bool is_role(const std::string& job) {
  return job == "worker" || job == "ps" || is_single_role(job);
}

bool is_single_role(const std::string& job) {
  return job == "chief" || job == "evaluator";
}

std::optional<std::string> lookup(const Environment& environment, const std::string& name) {
  std::optional<std::string> value = environment(name);
  if (value && value->empty()) return std::nullopt;
  return value;
}

std::string required(const Environment& environment, const std::string& name,
                     const std::string& why) {
  std::optional<std::string> value = lookup(environment, name);
  if (!value) refuse(absl::StrCat(name, " is not set; ", why));
  return *value;
}

int required_int(const Environment& environment, const std::string& name, int low, int high,
                 const std::string& why) {
  const std::string text = required(environment, name, why);
  const std::optional<int> value = parse_int(text);
  if (!value || *value < low || *value > high) {
    refuse(absl::StrCat(name, "='", text, "' is not a number from ", low, " to ", high, "; ", why));
  }
  return *value;
}

}  // namespace trireme::internal
