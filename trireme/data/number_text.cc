#include "trireme/data/number_text.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "absl/strings/match.h"

namespace trireme::internal {
namespace {

// Removes blanks on both sides and a plus sign, which std::from_chars() does not accept.
std::string_view bare_number(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  text = text.substr(first, text.find_last_not_of(" \t") - first + 1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

// Returns true if a valid number is 1 or more, without regard to its sign. Its exponent may have
// any number of digits.
bool is_large(std::string_view text) {
  const size_t mantissa = std::min(text.find_first_of("eE"), text.size());
  int64_t exponent = 0;
  if (mantissa < text.size()) {
    std::string_view digits = text.substr(mantissa + 1);
    if (digits[0] == '+') digits.remove_prefix(1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (error == std::errc::result_out_of_range) return digits[0] != '-';
  }
  text = text.substr(0, mantissa);
  const size_t first = std::min(text.find_first_not_of("-0."), text.size());
  const size_t point = std::min(text.find('.'), text.size());
  const int64_t magnitude = static_cast<int64_t>(point) - static_cast<int64_t>(first);
  return exponent > -magnitude;
}

template <typename T>
bool parse_float(std::string_view text, T& value) {
  text = bare_number(text);
  if (text.empty()) return false;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  if (parsed != end || error == std::errc::invalid_argument) return false;
  if (error == std::errc::result_out_of_range) {
    value = is_large(text) ? std::numeric_limits<T>::infinity() : T{0};
    if (text[0] == '-') value = -value;
  }
  return true;
}

template <typename T>
bool parse_integer(std::string_view text, T& value) {
  text = bare_number(text);
  if (text.empty()) return false;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  return parsed == end && error == std::errc();
}

}  // namespace

namespace number_text {

Decimal parse_long_decimal(const char* text, size_t length) {
  const uint64_t word = load_word(text);
  const size_t place = static_cast<size_t>(std::countr_zero(find_dots(word))) / 8;
  uint64_t wrong = 0;
  if (place == 8) {
    if (length > kMostDigits) return {};
    const uint64_t number = parse_digits(text, length, wrong);
    return {number, 0, wrong == 0};
  }
  const size_t fraction = length - 1 - place;
  if (fraction == 0) return {};
  uint64_t number = parse_digits(text + place + 1, fraction, wrong);
  if (place > 0) number += parse_word(word, place, wrong) * kIntegerPowersOfTen[fraction];
  return {number, fraction, wrong == 0};
}

}  // namespace number_text

bool parse_number(std::string_view text, float& value) {
  return parse_float(text, value);
}
bool parse_number(std::string_view text, double& value) {
  return parse_float(text, value);
}
bool parse_number(std::string_view text, int64_t& value) {
  return parse_integer(text, value);
}
bool parse_number(std::string_view text, int32_t& value) {
  return parse_integer(text, value);
}
bool parse_number(std::string_view text, uint8_t& value) {
  return parse_integer(text, value);
}

bool parse_number(std::string_view text, bool& value) {
  text = bare_number(text);
  const absl::string_view bare(text.data(), text.size());
  value = bare == "1" || absl::EqualsIgnoreCase(bare, "true");
  return value || bare == "0" || absl::EqualsIgnoreCase(bare, "false");
}

}  // namespace trireme::internal
