#include "trireme/data/cached.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "trireme/base/status.h"
#include "trireme/data/test_streams.h"
#include "trireme/testing/error_of.h"

namespace trireme::internal {
namespace {

constexpr uint64_t kCacheKey = 42;

// Opens streams over the numbers up to 20, all with the same cache.
class CachedTest : public testing::Test {
 protected:
  StreamPtr<Element> open() {
    return open_cached(kept_, kCacheKey, [this](uint64_t key) {
      EXPECT_EQ(key, kCacheKey);
      return std::make_unique<NumberStream>(20, &calls_, bad_);
    });
  }

  std::shared_ptr<CachedElements> kept_ = std::make_shared<CachedElements>();
  StreamCalls calls_;
  int64_t bad_ = -1;  // number that cannot be made
};

TEST_F(CachedTest, MakesElementsOnce) {
  for (int i = 0; i < 3; ++i) {
    const auto stream = open();
    EXPECT_EQ(numbers_left(*stream), numbers_between(0, 20));
    EXPECT_EQ(next_number(*stream), std::nullopt);
    EXPECT_TRUE(kept_->is_complete());
  }
  EXPECT_EQ(calls_.made, 20);
  EXPECT_EQ(calls_.opened, 1);
}

TEST_F(CachedTest, ContinuesToFillAnIncompleteCache) {
  EXPECT_EQ(numbers_left(*open(), 5), numbers_between(0, 5));
  EXPECT_EQ(numbers_left(*open(), 3), numbers_between(0, 3));
  EXPECT_EQ(calls_.opened, 1);
  EXPECT_FALSE(kept_->is_complete());
  EXPECT_EQ(numbers_left(*open()), numbers_between(0, 20));
  EXPECT_EQ(calls_.made, 20);
  EXPECT_EQ(calls_.skipped, 5);
  EXPECT_EQ(numbers_left(*open()), numbers_between(0, 20));
  EXPECT_EQ(calls_.made, 20);
}

TEST_F(CachedTest, SkipsAnyNumberOfElements) {
  expect_skips([&] { return open(); });  // with one cache that fills
  expect_skips([&] {
    kept_ = std::make_shared<CachedElements>();
    return open();
  });
}

TEST_F(CachedTest, SkippedElementsFillTheCache) {
  // As a shard does in each repetition.
  for (int i = 0; i < 2; ++i) {
    const auto stream = open();
    for (int64_t number = 3; number < 20; number += 4) {
      EXPECT_EQ(value_or_throw(stream->skip(3)), 3);
      EXPECT_EQ(next_number(*stream), number);
    }
    EXPECT_EQ(value_or_throw(stream->skip(3)), 0);
  }
  EXPECT_EQ(calls_.made, 20);
}

TEST_F(CachedTest, SkipsInACompleteCacheByArithmetic) {
  numbers_left(*open());
  const auto stream = open();
  EXPECT_EQ(value_or_throw(stream->skip(int64_t{1} << 60)), 20);
  EXPECT_EQ(calls_.made, 20);
}

TEST_F(CachedTest, StreamsMayAlternate) {
  const auto one = open(), other = open();
  for (int64_t i = 0; i < 20; i += 2) {
    EXPECT_EQ(numbers_left(*one, 2), numbers_between(i, i + 2));
    EXPECT_EQ(numbers_left(*other, 1), numbers_between(i / 2, i / 2 + 1));
  }
  EXPECT_EQ(numbers_left(*other), numbers_between(10, 20));
  EXPECT_EQ(calls_.made, 20);
}

TEST_F(CachedTest, StreamsMayRunAtTheSameTime) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(numbers_left(*open()), numbers_between(0, 20)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(kept_->size(), 20);
}

TEST_F(CachedTest, AnElementThatCannotBeMadeIsSkipped) {
  bad_ = 5;
  const auto first = open();
  EXPECT_EQ(numbers_left(*first, 5), numbers_between(0, 5));
  EXPECT_EQ(error_of([&] { next_number(*first); }).code(), ErrorCode::kDataLoss);
  for (int i = 0; i < 2; ++i) {
    const auto second = open();
    EXPECT_EQ(value_or_throw(second->skip(6)), 6);
    EXPECT_EQ(next_number(*second), 6);
    const int64_t made = calls_.made;
    EXPECT_EQ(value_or_throw(second->skip(3)), 3);
    EXPECT_EQ(calls_.made, made);
    EXPECT_EQ(numbers_left(*second), numbers_between(10, 20));
  }
  EXPECT_EQ(kept_->size(), 5);
  EXPECT_FALSE(kept_->is_complete());
  EXPECT_EQ(value_or_throw(open()->skip(100)), 20);
}

TEST_F(CachedTest, RefusesToKeepTooMuch) {
  kept_ = std::make_shared<CachedElements>(3000);
  const auto stream = open();
  const Error error = error_of([&] { numbers_left(*stream); });
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.what(), testing::HasSubstr("dataset step 'cache'"));
  EXPECT_THAT(error.what(), testing::HasSubstr("at most 3000"));
  EXPECT_EQ(kept_->size(), 11);
  EXPECT_EQ(error_code(open()->skip(20).status()), ErrorCode::kResourceExhausted);
}

TEST(CachedElements, HoldNoOtherRowsOfABlock) {
  CachedElements kept;
  const at::Tensor block = at::zeros({1000, 2});
  ASSERT_TRUE(kept.add(0, {block[7], block}).ok());
  const Element element = *kept.find(0);
  EXPECT_EQ(element[0].storage().nbytes(), 8u);
  EXPECT_TRUE(element[1].is_same(block));
}

}  // namespace
}  // namespace trireme::internal
