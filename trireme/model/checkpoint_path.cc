#include "trireme/model/checkpoint_path.h"

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme::internal {
namespace {

constexpr char kEpochName[] = "epoch";

[[noreturn]] void reject_pattern(const std::string& pattern, const std::string& fault) {
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("the path '", pattern, "' of a ModelCheckpoint ", fault));
}

// Returns true if a format has the form [0][width][.precision], with at most two digits each,
// followed by one of the letters or nothing.
bool is_number_format(const std::string& format, const std::string& letters, bool precision) {
  size_t at = 0;
  const auto skip_digits = [&] {
    const size_t begin = at;
    while (at < format.size() && format[at] >= '0' && format[at] <= '9') ++at;
    return at - begin;
  };
  if (skip_digits() > 3) return false;
  if (precision && at < format.size() && format[at] == '.') {
    ++at;
    const size_t digits = skip_digits();
    if (digits == 0 || digits > 2) return false;
  }
  if (at < format.size() && letters.find(format[at]) != std::string::npos) ++at;
  return at == format.size();
}

// Formats a number. `format` is a checked one, or empty.
template <typename Number>
std::string print_number(const std::string& format, const std::string& letters,
                         const std::string& length, Number value) {
  std::string print = absl::StrCat("%", format);
  const bool has_letter = letters.find(print.back()) != std::string::npos;
  const char letter = has_letter ? print.back() : letters[0];
  if (has_letter) print.pop_back();
  print += length + letter;
  const int size = std::snprintf(nullptr, 0, print.c_str(), value);
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), print.c_str(), value);
  text.pop_back();
  return text;
}

// Returns the text for one name with its format, which come without braces.
std::string replacement(const std::string& pattern, const std::string& field, int64_t epoch,
                        const Logs& logs) {
  const size_t colon = field.find(':');
  const std::string name = field.substr(0, colon);
  const std::string format = colon == std::string::npos ? "" : field.substr(colon + 1);
  const std::string letters = name == kEpochName ? "d" : "gfe";
  if (!is_number_format(format, letters, /*precision=*/name != kEpochName)) {
    reject_pattern(pattern, absl::StrCat("has the format '", format, "' for '", name,
                                         "'; use one such as {epoch:03} or {val_loss:.2f}"));
  }
  if (name == kEpochName) {
    return print_number(format, letters, "ll", static_cast<long long>(epoch));
  }
  if (!logs.contains(name)) {
    std::string names = kEpochName;
    for (const auto& [known, value] : logs.entries()) absl::StrAppend(&names, ", ", known);
    reject_pattern(pattern, absl::StrCat("has the name '", name, "'; the names are ", names));
  }
  return print_number(format, letters, "", logs[name]);
}

}  // namespace

std::string format_checkpoint_path(const std::string& pattern, int64_t epoch, const Logs& logs) {
  std::string path;
  for (size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] == '}') reject_pattern(pattern, "has a '}' without a '{' before it");
    if (pattern[at] != '{') {
      path += pattern[at];
      continue;
    }
    const size_t end = pattern.find('}', at);
    if (end == std::string::npos) reject_pattern(pattern, "has a '{' without a '}' after it");
    path += replacement(pattern, pattern.substr(at + 1, end - at - 1), epoch, logs);
    at = end;
  }
  return path;
}

}  // namespace trireme::internal
