#include "trireme/data/number_text.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <random>
#include <string>

namespace trireme::internal {
namespace {

// Parses with both functions, and expects that the short one says the same unless it says nothing.
template <typename T>
std::optional<T> parsed(const std::string& text) {
  T value{};
  const bool is_valid = parse_number(text, value);
  const std::string padded = text + std::string(kReadAhead, '9');
  T short_value{};
  if (parse_short(padded.data(), text.size(), short_value)) {
    EXPECT_TRUE(is_valid) << text;
    EXPECT_EQ(short_value, value) << text;
    if constexpr (std::is_floating_point_v<T>) {
      EXPECT_EQ(std::signbit(short_value), std::signbit(value)) << text;
    }
  }
  return is_valid ? std::optional<T>(value) : std::nullopt;
}

template <typename T>
bool is_short(const std::string& text) {
  const std::string padded = text + std::string(kReadAhead, '9');
  T value{};
  return parse_short(padded.data(), text.size(), value);
}

TEST(NumberText, ParsesIntegers) {
  EXPECT_EQ(parsed<int64_t>("0"), 0);
  EXPECT_EQ(parsed<int64_t>("-12345678"), -12345678);
  EXPECT_EQ(parsed<int64_t>("123456789"), 123456789);
  EXPECT_EQ(parsed<int64_t>("1234567890123456"), 1234567890123456);
  EXPECT_EQ(parsed<int64_t>("+7"), 7);
  EXPECT_EQ(parsed<int64_t>("  7\t"), 7);
  EXPECT_EQ(parsed<int64_t>("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parsed<int64_t>("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(parsed<int32_t>("2147483647"), INT32_MAX);
  EXPECT_EQ(parsed<int32_t>("-2147483648"), INT32_MIN);
  EXPECT_EQ(parsed<uint8_t>("255"), 255);
}

TEST(NumberText, RejectsIntegersOutOfRange) {
  EXPECT_EQ(parsed<int64_t>("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parsed<int64_t>("-9223372036854775809"), std::nullopt);
  EXPECT_EQ(parsed<int32_t>("2147483648"), std::nullopt);
  EXPECT_EQ(parsed<int32_t>("-2147483649"), std::nullopt);
  EXPECT_EQ(parsed<int32_t>("4294967296"), std::nullopt);
  EXPECT_EQ(parsed<uint8_t>("256"), std::nullopt);
  EXPECT_EQ(parsed<uint8_t>("-1"), std::nullopt);
  EXPECT_EQ(parsed<uint8_t>("-0"), std::nullopt);
}

TEST(NumberText, RejectsTextsThatAreNotNumbers) {
  for (const std::string text :
       {"",      "-",   "+",    ".",     "-.",   "abc", "1a",        "a1",          "1 2",
        "--1",   "+-1", "1..2", "1.2.3", "0x10", "1,5", "12345678x", "1234567890:", "1e",
        "1.5e+", "/1",  "1/",   "\xB1",  "1\xB9"}) {
    EXPECT_EQ(parsed<float>(text), std::nullopt) << text;
    EXPECT_EQ(parsed<double>(text), std::nullopt) << text;
    EXPECT_EQ(parsed<int64_t>(text), std::nullopt) << text;
    EXPECT_EQ(parsed<int32_t>(text), std::nullopt) << text;
    EXPECT_EQ(parsed<uint8_t>(text), std::nullopt) << text;
    EXPECT_EQ(parsed<bool>(text), std::nullopt) << text;
  }
  EXPECT_EQ(parsed<int64_t>("1.0"), std::nullopt);
}

TEST(NumberText, ParsesBools) {
  EXPECT_EQ(parsed<bool>("0"), false);
  EXPECT_EQ(parsed<bool>("1"), true);
  EXPECT_EQ(parsed<bool>("True"), true);
  EXPECT_EQ(parsed<bool>("FALSE"), false);
  EXPECT_EQ(parsed<bool>("2"), std::nullopt);
}

TEST(NumberText, ParsesFloats) {
  EXPECT_EQ(parsed<double>("0.1"), 0.1);
  EXPECT_EQ(parsed<double>("-0"), 0.0);
  EXPECT_EQ(parsed<double>(".5"), 0.5);
  EXPECT_EQ(parsed<double>("5."), 5.0);
  EXPECT_EQ(parsed<double>("1.5e-3"), 0.0015);
  EXPECT_EQ(parsed<double>("9007199254740993"), 9007199254740992.0);
  EXPECT_EQ(parsed<float>("16777217"), 16777216.0f);
  EXPECT_EQ(parsed<float>("16777217.0000001"), 16777218.0f);
  EXPECT_EQ(parsed<float>(" 2.5 "), 2.5f);
  EXPECT_TRUE(std::isnan(parsed<float>("nan").value()));
  EXPECT_EQ(parsed<float>("-inf"), -std::numeric_limits<float>::infinity());
}

TEST(NumberText, RoundsFloatsOutOfRange) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(parsed<double>("1e400"), kInfinite);
  EXPECT_EQ(parsed<double>("-1e+400"), -kInfinite);
  EXPECT_EQ(parsed<double>("1" + std::string(400, '0')), kInfinite);
  EXPECT_EQ(parsed<double>("1e99999999999999999999"), kInfinite);
  EXPECT_EQ(parsed<double>("1e-400"), 0.0);
  EXPECT_EQ(parsed<double>("1e-99999999999999999999"), 0.0);
  EXPECT_EQ(parsed<double>("0." + std::string(400, '0') + "1"), 0.0);
  EXPECT_EQ(parsed<float>("1e39"), std::numeric_limits<float>::infinity());
  EXPECT_EQ(parsed<float>("1e-40"), 1e-40f);
}

// The fast way must be taken for what files usually have, and give the nearest number.
TEST(NumberText, ParsesRandomNumbersExactly) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    std::string text = random() % 2 == 0 ? "-" : "";
    const int whole = static_cast<int>(random() % 9);
    const int fraction = static_cast<int>(random() % 12);
    for (int j = 0; j < whole; ++j) text += static_cast<char>('0' + random() % 10);
    if (fraction > 0 || random() % 4 == 0) text += '.';
    for (int j = 0; j < fraction; ++j) text += static_cast<char>('0' + random() % 10);
    const auto check = [&]<typename T>(T expected) {
      const char* const end = text.data() + text.size();
      const auto [ended, error] = std::from_chars(text.data(), end, expected);
      const bool is_valid = error == std::errc() && ended == end;
      const std::optional<T> value = parsed<T>(text);
      ASSERT_EQ(value.has_value(), is_valid) << text;
      if (is_valid) {
        ASSERT_EQ(*value, expected) << text;
      }
    };
    check(float{});
    check(double{});
    check(int64_t{});
    check(int32_t{});
    check(uint8_t{});
  }
  EXPECT_TRUE(is_short<float>("-12.345678"));
  EXPECT_TRUE(is_short<double>("0.12345678901234"));
  EXPECT_TRUE(is_short<int64_t>("-1234567890123456"));
}

}  // namespace
}  // namespace trireme::internal
