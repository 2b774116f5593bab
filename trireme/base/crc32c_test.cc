#include "trireme/base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace trireme {
namespace {

std::string random_text(size_t bytes) {
  std::mt19937_64 random(7);
  std::string text(bytes, 0);
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(Crc32c, HasTheValuesOfRfc3720) {
  EXPECT_EQ(crc32c("", 0), 0u);
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, 0).data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43u);
  std::string ascending(32, 0);
  for (int i = 0; i < 32; ++i) ascending[i] = static_cast<char>(i);
  EXPECT_EQ(crc32c(ascending.data(), 32), 0x46dd794eu);
  EXPECT_EQ(internal::crc32c_portable(ascending.data(), 32, 0), 0x46dd794eu);
}

TEST(Crc32c, IsTheSameWithAndWithoutTheInstructionAtEveryLengthAndAlignment) {
  const std::string text = random_text(40'000);
  for (size_t bytes = 0; bytes < 40'000 - 8; bytes = bytes < 2000 ? bytes + 1 : bytes + 613) {
    const char* begin = text.data() + bytes % 8;
    ASSERT_EQ(crc32c(begin, bytes), internal::crc32c_portable(begin, bytes, 0)) << bytes;
  }
}

TEST(Crc32c, ExtendsAndCombines) {
  const std::string text = random_text(30'000);
  const uint32_t whole = crc32c(text.data(), text.size());
  for (size_t cut : {size_t{0}, size_t{1}, size_t{7}, size_t{4096}, size_t{12'345}, text.size()}) {
    const uint32_t first = crc32c(text.data(), cut);
    const uint32_t second = crc32c(text.data() + cut, text.size() - cut);
    EXPECT_EQ(crc32c(text.data() + cut, text.size() - cut, first), whole) << cut;
    EXPECT_EQ(crc32c_combine(first, second, text.size() - cut), whole) << cut;
  }
  // A length that does not fit into 32 bits: shifting twice over half is shifting over the whole.
  const uint64_t huge = (uint64_t{1} << 40) + 12;
  const uint32_t half = crc32c_combine(whole, 0, huge / 2);
  EXPECT_EQ(crc32c_combine(half, 0, huge / 2), crc32c_combine(whole, 0, huge));
}

}  // namespace
}  // namespace trireme
