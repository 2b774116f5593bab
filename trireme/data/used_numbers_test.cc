#include "trireme/data/used_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();

TEST(UsedNumbers, KeepsTheGapsOnly) {
  UsedNumbers numbers;
  EXPECT_EQ(numbers.first_unused(), 0u);
  numbers.use({0, 10});
  EXPECT_EQ(numbers.first_unused(), 10u);
  numbers.use({12, 3});
  numbers.use({20, 1});
  EXPECT_EQ(numbers.first_unused(), 10u);
  EXPECT_EQ(numbers.next(), 21u);
  EXPECT_THAT(numbers.unused(), ElementsAre(NumberSpan{10, 2}, NumberSpan{15, 5}));
  numbers.use({11, 6});  // Covers the end of one gap and the beginning of the next.
  EXPECT_THAT(numbers.unused(), ElementsAre(NumberSpan{10, 1}, NumberSpan{17, 3}));
  numbers.use({10, 10});
  EXPECT_THAT(numbers.unused(), IsEmpty());
  EXPECT_EQ(numbers.first_unused(), 21u);
}

TEST(UsedNumbers, NumbersThatArePutBackAreTheNextOnes) {
  UsedNumbers numbers;
  numbers.use({0, 10});
  numbers.put_back({9, 1});
  EXPECT_EQ(numbers.next(), 9u);
  numbers.put_back({3, 2});
  numbers.put_back({5, 1});
  EXPECT_THAT(numbers.unused(), ElementsAre(NumberSpan{3, 3}));
  EXPECT_EQ(numbers.first_unused(), 3u);
  numbers.put_back({100, 5});
  EXPECT_EQ(numbers.next(), 9u);
  numbers.put_back({6, 3});
  EXPECT_EQ(numbers.next(), 3u);
  EXPECT_THAT(numbers.unused(), IsEmpty());
}

TEST(UsedNumbers, AgreesWithASetOfNumbers) {
  std::mt19937 random(7);
  UsedNumbers numbers;
  std::set<uint64_t> used;
  for (int i = 0; i < 5000; ++i) {
    const NumberSpan span{random() % 60, random() % 6};
    const bool uses = random() % 3 != 0;
    for (uint64_t n = span.first; n < span.first + span.count; ++n) {
      if (uses) {
        used.insert(n);
      } else {
        used.erase(n);
      }
    }
    if (uses) {
      numbers.use(span);
    } else {
      numbers.put_back(span);
    }
    const IteratorPosition position = value_or_throw(numbers.position(1));
    ASSERT_EQ(position.next, used.empty() ? 0 : *used.rbegin() + 1);
    std::vector<uint64_t> unused;
    for (uint64_t n = 0; n < position.next; ++n) {
      if (!used.contains(n)) unused.push_back(n);
    }
    ASSERT_EQ(position.returned, unused);
    const UsedNumbers copy = value_or_throw(UsedNumbers::create(position));
    ASSERT_EQ(copy.unused(), numbers.unused());
    ASSERT_EQ(copy.next(), numbers.next());
  }
}

TEST(UsedNumbers, RejectsPositionsThatNoIteratorHas) {
  EXPECT_FALSE(UsedNumbers::create(kMost + 1, {}).ok());
  EXPECT_FALSE(UsedNumbers::create(5, {{5, 1}}).ok());
  EXPECT_FALSE(UsedNumbers::create(5, {{3, 1}, {2, 1}}).ok());
  EXPECT_FALSE(UsedNumbers::create(5, {{1, 3}, {2, 1}}).ok());
  EXPECT_FALSE(UsedNumbers::create(5, {{1, std::numeric_limits<uint64_t>::max()}}).ok());
  EXPECT_TRUE(UsedNumbers::create(kMost, {{0, kMost}}).ok());
  EXPECT_FALSE(is_valid({kMost, 1}));
  EXPECT_TRUE(is_valid({kMost - 1, 1}));
}

TEST(UsedNumbers, DoesNotListTooManyNumbers) {
  UsedNumbers numbers;
  numbers.use({uint64_t{1} << 40, 1});
  const auto position = numbers.position(0);
  EXPECT_EQ(error_code(position.status()), ErrorCode::kResourceExhausted);
  EXPECT_THAT(describe(position.status()), HasSubstr("not used"));
}

TEST(UsedNumbers, SpansGrowByTheNextNumber) {
  std::vector<NumberSpan> spans;
  for (uint64_t number : {4, 5, 6, 2, 3, 9}) add_number(spans, number);
  EXPECT_THAT(spans, ElementsAre(NumberSpan{4, 3}, NumberSpan{2, 2}, NumberSpan{9, 1}));
}

}  // namespace
}  // namespace trireme::internal
