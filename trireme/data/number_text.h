#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

// Numbers as text, without regard to the locale. parse_short() handles the usual forms in a few
// nanoseconds, and parse_number() the rest; both give the number nearest to the text.
namespace trireme::internal {

// Parses all of `text`, which may have blanks around the number. Returns false if that is not
// possible: the text is not a number, or not in the range of an integer type. Floating-point
// numbers that are too large are infinite. A bool is 0, 1, true or false.
bool parse_number(std::string_view text, float& value);
bool parse_number(std::string_view text, double& value);
bool parse_number(std::string_view text, int64_t& value);
bool parse_number(std::string_view text, int32_t& value);
bool parse_number(std::string_view text, uint8_t& value);
bool parse_number(std::string_view text, bool& value);

// Number of bytes from the beginning of a text that parse_short() may read, whatever its length.
inline constexpr size_t kReadAhead = 32;

namespace number_text {

inline constexpr size_t kMostDigits = 16;
inline constexpr double kPowersOfTen[kMostDigits + 1] = {
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16};
inline constexpr double kInversePowersOfTen[kMostDigits + 1] = {
    1e-0, 1e-1,  1e-2,  1e-3,  1e-4,  1e-5,  1e-6,  1e-7, 1e-8,
    1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15, 1e-16};
inline constexpr uint64_t kIntegerPowersOfTen[kMostDigits + 1] = {1,
                                                                  10,
                                                                  100,
                                                                  1'000,
                                                                  10'000,
                                                                  100'000,
                                                                  1'000'000,
                                                                  10'000'000,
                                                                  100'000'000,
                                                                  1'000'000'000,
                                                                  10'000'000'000,
                                                                  100'000'000'000,
                                                                  1'000'000'000'000,
                                                                  10'000'000'000'000,
                                                                  100'000'000'000'000,
                                                                  1'000'000'000'000'000,
                                                                  10'000'000'000'000'000};

inline constexpr uint64_t repeated(uint8_t byte) {
  return uint64_t{0x0101010101010101} * byte;
}

static_assert(std::endian::native == std::endian::little, "the first byte is the lowest one");

inline uint64_t load_word(const char* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Returns the number that the first `count` bytes of the word make, 1 to 8. Sets bits of `wrong` if
// one of them is not a digit.
inline uint64_t parse_word(uint64_t word, size_t count, uint64_t& wrong) {
  // The digits move to the upper bytes, so that zeros precede them.
  word = (word ^ repeated('0')) << (64 - 8 * count);
  wrong |= ((word + repeated(0x80 - 10)) | word) & repeated(0x80);
  // Joins neighbours: bytes to pairs of digits, then two pairs at a time to four digits, which are
  // at once put in their place.
  word = word * 10 + (word >> 8);
  constexpr uint64_t kPairs = 0x000000FF000000FF;
  constexpr uint64_t kFirstWeights = 100 + (uint64_t{1'000'000} << 32);
  constexpr uint64_t kSecondWeights = 1 + (uint64_t{10'000} << 32);
  return ((word & kPairs) * kFirstWeights + ((word >> 16) & kPairs) * kSecondWeights) >> 32;
}

// Returns the number that `count` bytes make, 1 to kMostDigits.
inline uint64_t parse_digits(const char* text, size_t count, uint64_t& wrong) {
  if (count <= 8) return parse_word(load_word(text), count, wrong);
  const uint64_t upper = parse_word(load_word(text), count - 8, wrong);
  return upper * 100'000'000 + parse_word(load_word(text + count - 8), 8, wrong);
}

// Returns a word whose lowest bit is the highest one of the first byte that is a point, or 0.
inline uint64_t find_dots(uint64_t word) {
  const uint64_t no_dots = word ^ repeated('.');
  return (no_dots - repeated(1)) & ~no_dots & repeated(0x80);
}

// The digits of a number without its sign, as an integer, and how many of them follow the point.
struct Decimal {
  uint64_t digits = 0;
  size_t fraction = 0;
  bool is_valid = false;  // false if the text is not valid, or has more digits than that
};

// Parse a text of 1 to kMostDigits + 1 bytes. The first one is for other than one to eight digits.
Decimal parse_long_decimal(const char* text, size_t length);
[[gnu::always_inline]] inline Decimal parse_decimal(const char* text, size_t length) {
  const uint64_t word = load_word(text);
  const uint64_t dots = find_dots(word);
  const size_t place = static_cast<size_t>(std::countr_zero(dots)) / 8;  // 8 without a point
  const size_t has_dot = size_t{place < length} & size_t{place < 8};
  const size_t count = length - has_dot;
  if (count - 1 >= 8) return parse_long_decimal(text, length);
  // The bytes after the point move to its place. Without a point, all bytes are before it. No
  // branch depends on the number.
  const uint64_t before = ((dots & -dots) >> 7) - 1;
  const uint64_t digits = (word & before) | (load_word(text + 1) & ~before);
  uint64_t wrong = 0;
  const uint64_t number = parse_word(digits, count, wrong);
  return {number, has_dot != 0 ? length - 1 - place : 0, wrong == 0};
}

[[gnu::always_inline]] inline bool parse_short_float(const char* text, size_t length,
                                                     double& value) {
  const bool is_negative = *text == '-';
  length -= is_negative;
  if (length - 1 > kMostDigits) return false;  // or 0, or less than 0
  const Decimal number = parse_decimal(text + is_negative, length);
  // Division is exactly rounded, and both of its operands are exact.
  constexpr uint64_t kMostExact = uint64_t{1} << std::numeric_limits<double>::digits;
  if (!number.is_valid || number.digits > kMostExact) return false;
  const double size =
      static_cast<double>(static_cast<int64_t>(number.digits)) / kPowersOfTen[number.fraction];
  // The sign is set without a branch, which could not be predicted.
  value = std::bit_cast<double>(std::bit_cast<uint64_t>(size) | uint64_t{is_negative} << 63);
  return true;
}

[[gnu::always_inline]] inline bool parse_short_float(const char* text, size_t length,
                                                     float& value) {
  const bool is_negative = *text == '-';
  length -= is_negative;
  if (length - 1 > kMostDigits) return false;  // or 0, or less than 0
  const Decimal number = parse_decimal(text + is_negative, length);
  constexpr uint64_t kMostExact = uint64_t{1} << std::numeric_limits<double>::digits;
  if (!number.is_valid || number.digits > kMostExact) return false;
  // The product is faster than the quotient, but rounded twice: it may be off by two units in the
  // last of the 52 bits after the point. A float has 23 of them, so the float is the nearest one
  // unless the product is that close to the middle between two floats.
  const double size = static_cast<double>(static_cast<int64_t>(number.digits)) *
                      kInversePowersOfTen[number.fraction];
  const uint64_t bits = std::bit_cast<uint64_t>(size);
  constexpr uint64_t kDropped = (uint64_t{1} << 29) - 1, kMiddle = uint64_t{1} << 28;
  if (((bits - (kMiddle - 2)) & kDropped) <= 4) return false;
  value = static_cast<float>(std::bit_cast<double>(bits | uint64_t{is_negative} << 63));
  return true;
}

template <typename T>
inline bool parse_short_integer(const char* text, size_t length, T& value) {
  const bool is_negative = std::is_signed_v<T> && *text == '-';
  text += is_negative;
  length -= is_negative;
  if (length - 1 >= kMostDigits) return false;  // or 0, or less than 0
  uint64_t wrong = 0;
  const int64_t digits = static_cast<int64_t>(parse_digits(text, length, wrong));
  const int64_t sign = -int64_t{is_negative};
  const int64_t number = (digits ^ sign) - sign;  // without a branch
  value = static_cast<T>(number);
  return wrong == 0 && value == number;
}

}  // namespace number_text

// Parses a text of the usual form: digits, perhaps with a sign before them and a point between
// them. Returns false if parse_number() has to decide. kReadAhead bytes must be readable.
template <typename T>
inline bool parse_short(const char* text, size_t length, T& value) {
  if constexpr (std::is_floating_point_v<T>) {
    return number_text::parse_short_float(text, length, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    value = *text == '1';
    return length == 1 && (*text == '0' || *text == '1');
  } else {
    return number_text::parse_short_integer(text, length, value);
  }
}

}  // namespace trireme::internal
