#include "trireme/coordinator/range_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kAll = 1 << 20;

// A dataset whose ranges have the given numbers of elements. The account is told `most` of each.
struct TestData {
  std::vector<uint64_t> lengths;
  uint64_t most = kMostInRange;
  uint64_t epochs = 1;
  bool count_is_known = true;

  RangeSizes sizes() const {
    RangeSizes sizes{.most_elements = [most = most](uint64_t) { return most; }, .epochs = epochs};
    if (count_is_known) sizes.ranges = lengths.size();
    return sizes;
  }
  bool has(uint64_t number) const {
    const RangePlace place = place_of(number);
    return place.range < lengths.size() && place.index < lengths[place.range];
  }
  // Notes the end for the first of the numbers that does not exist. Returns the number of elements
  // before it; all are used.
  uint64_t draw(RangeAccount& account, NumberSpan span) const {
    for (uint64_t i = 0; i < span.count; ++i) {
      if (has(span.first + i)) continue;
      const RangePlace place = place_of(span.first + i);
      account.note_end(span.first + i, place.range >= lengths.size() && place.index == 0);
      account.put_back({span.first + i, span.count - i});
      if (i > 0) account.use({span.first, i});
      return i;
    }
    account.use(span);
    return span.count;
  }
};

uint64_t at(uint64_t epoch, uint64_t range, uint64_t index) {
  return number_of({epoch, range, index});
}

TEST(RangePlaces, AreInAscendingOrder) {
  const RangePlace place{.epoch = 3, .range = 70'000, .index = 5};
  EXPECT_EQ(place_of(number_of(place)), place);
  EXPECT_LT(at(0, kMostRanges - 1, 7), at(1, 0, 0));
  EXPECT_EQ(at(1, kMostRanges, 0), at(2, 0, 0));
  EXPECT_LT(at(kMostEpochs - 1, kMostRanges - 1, kMostInRange - 1), kNoElement);
  EXPECT_TRUE(is_valid({kNoElement, 1}));
}

TEST(RangeAccountTest, WorkersTakeTheLowestFreeRange) {
  RangeAccount account(TestData{.lengths = {3, 3, 3}, .most = 3}.sizes());
  EXPECT_THAT(account.take(7, 2), ElementsAre(NumberSpan{at(0, 0, 0), 2}));
  EXPECT_THAT(account.take(4, 2), ElementsAre(NumberSpan{at(0, 1, 0), 2}));
  EXPECT_THAT(account.take(7, 2),
              ElementsAre(NumberSpan{at(0, 0, 2), 1}, NumberSpan{at(0, 2, 0), 1}));
  // All ranges are held, so worker 5 helps with the lowest of them.
  EXPECT_THAT(account.take(5, 9),
              ElementsAre(NumberSpan{at(0, 1, 2), 1}, NumberSpan{at(0, 2, 1), 2}));
  EXPECT_THAT(account.take(7, 1), IsEmpty());
}

TEST(RangeAccountTest, TheRestOfALostWorkersRangeIsHandedOutAgain) {
  RangeAccount account(TestData{.lengths = {4, 4}, .most = 4}.sizes());
  account.take(1, 1);
  account.release(1);
  EXPECT_THAT(account.take(2, 1), ElementsAre(NumberSpan{at(0, 0, 1), 1}))
      << "before range 1, which nobody has";
  account.put_back({at(0, 0, 0), 1});
  EXPECT_THAT(account.take(1, 1), ElementsAre(NumberSpan{at(0, 1, 0), 1}))
      << "worker 2 holds range 0 now";
}

TEST(RangeAccountTest, EpochsFollowEachOther) {
  RangeAccount account(TestData{.lengths = {2}, .most = 2, .epochs = 2}.sizes());
  EXPECT_THAT(account.take(0, 9),
              ElementsAre(NumberSpan{at(0, 0, 0), 2}, NumberSpan{at(1, 0, 0), 2}));
  RangeAccount empty(TestData{.lengths = {}, .epochs = kAll}.sizes());
  EXPECT_THAT(empty.take(0, 1), IsEmpty());
  RangeAccount without_elements(TestData{.lengths = {0, 0}, .most = 0}.sizes());
  EXPECT_THAT(without_elements.take(0, 1), IsEmpty());
}

TEST(RangeAccountTest, LearnsLengthsFromWorkers) {
  const TestData data{.lengths = {3, 0, 2}};
  RangeAccount account(data.sizes());
  EXPECT_EQ(data.draw(account, account.take(0, 8)[0]), 3u);
  EXPECT_FALSE(account.has_taken());
  const std::vector<NumberSpan> next = account.take(0, 1);
  EXPECT_THAT(next, ElementsAre(NumberSpan{at(0, 1, 0), 1}));
  EXPECT_EQ(data.draw(account, next[0]), 0u);
  EXPECT_THAT(account.take(0, 2), ElementsAre(NumberSpan{at(0, 2, 0), 2}));
}

TEST(RangeAccountTest, LearnsTheNumberOfRangesFromWorkers) {
  const TestData data{.lengths = {2, 1}, .most = 2, .epochs = 2, .count_is_known = false};
  RangeAccount account(data.sizes());
  uint64_t used = 0;
  std::set<uint64_t> epochs;
  for (int i = 0; i < 40; ++i) {
    for (const NumberSpan& span : account.take(i % 3, 1)) {
      const uint64_t drawn = data.draw(account, span);
      used += drawn;
      if (drawn > 0) epochs.insert(place_of(span.first).epoch);
    }
  }
  EXPECT_EQ(used, 6u);
  EXPECT_THAT(epochs, ElementsAre(0, 1));
  EXPECT_FALSE(account.has_taken());
}

// Simulates workers with closures in flight, some of which are lost with their worker, put back, or
// interrupted by a checkpoint that another number of workers continues from.
class RandomSchedule {
 public:
  RandomSchedule(TestData data, uint32_t seed) : data_(std::move(data)), random_(seed) {}

  // Returns how often each element was used.
  std::map<uint64_t, int> run() {
    for (int step = 0; step < 200'000; ++step) {
      const int worker = below(workers_);
      switch (below(40)) {
        case 0:  // The worker is lost. Its closures run elsewhere, with the same elements.
          account_->release(worker);
          break;
        case 1:
          if (!in_flight_.empty()) account_->put_back(take_in_flight());
          break;
        case 2:
          continue_from_checkpoint();
          break;
        default:
          if (below(2) == 0 || in_flight_.size() > 6) {
            finish_one();
          } else if (!send(worker) && in_flight_.empty()) {
            return used_;
          }
      }
    }
    ADD_FAILURE() << "the data did not end";
    return used_;
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<uint32_t>(limit)); }
  bool send(int worker) {
    const auto spans = account_->take(worker, 1 + below(4));
    in_flight_.insert(in_flight_.end(), spans.begin(), spans.end());
    return !spans.empty();
  }
  NumberSpan take_in_flight() {
    std::swap(in_flight_[below(static_cast<int>(in_flight_.size()))], in_flight_.back());
    const NumberSpan span = in_flight_.back();
    in_flight_.pop_back();
    return span;
  }
  void finish_one() {
    if (in_flight_.empty()) return;
    const NumberSpan span = take_in_flight();
    const uint64_t drawn = data_.draw(*account_, span);
    for (uint64_t i = 0; i < drawn; ++i) ++used_[span.first + i];
  }
  // Closures that have not ended are forgotten, so their elements are drawn again.
  void continue_from_checkpoint() {
    const IteratorPosition position = account_->position(5);
    EXPECT_LT(position.returned.size(), 300u);
    in_flight_.clear();
    account_.emplace(data_.sizes());
    throw_if_error(account_->restore(position));
    EXPECT_EQ(account_->position(5), position);
    workers_ = 1 + below(5);
  }

  const TestData data_;
  std::mt19937 random_;
  std::optional<RangeAccount> account_{data_.sizes()};
  std::vector<NumberSpan> in_flight_;
  std::map<uint64_t, int> used_;
  int workers_ = 3;
};

TEST(RangeAccountTest, EveryElementIsUsedOnceInEachEpoch) {
  const std::vector<TestData> all = {
      {.lengths = {8, 8, 8, 8, 3}, .most = 8, .epochs = 2},
      {.lengths = {40, 0, 7, 1, 25, 90}, .epochs = 2},
      {.lengths = {8, 8, 5}, .most = 8, .epochs = 3, .count_is_known = false},
  };
  for (const TestData& data : all) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
      const std::map<uint64_t, int> used = RandomSchedule(data, seed).run();
      uint64_t elements = 0;
      for (uint64_t length : data.lengths) elements += length * data.epochs;
      EXPECT_EQ(used.size(), elements) << seed;
      for (const auto& [number, times] : used) EXPECT_EQ(times, 1) << seed << " " << number;
    }
  }
}

TEST(RangeAccountTest, EndlessRepetitionOutlastsItsNumbers) {
  RangeAccount account(TestData{.lengths = {2}, .most = 2, .epochs = UINT64_MAX}.sizes());
  const uint64_t last = at(kMostEpochs - 1, 0, 0);
  throw_if_error(account.restore({.next = last}));
  EXPECT_THAT(account.take(0, 2), ElementsAre(NumberSpan{last, 2}));
  EXPECT_THAT(account.take(0, 2), IsEmpty()) << "the last numbers are in use";
  account.use({last, 2});
  EXPECT_THAT(account.take(0, 2), ElementsAre(NumberSpan{0, 2}));
}

TEST(RangeAccountTest, RejectsPositionsThatCannotBe) {
  RangeAccount account(TestData{.lengths = {8, 8}}.sizes());
  const uint64_t next = at(0, 2, 0);
  const auto rejects = [&](IteratorPosition position) {
    return error_code(account.restore(position)) == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(rejects({.next = next + 1}));
  EXPECT_TRUE(rejects({.next = next, .returned = {at(0, 1, 0), at(0, 0, 0)}}));
  EXPECT_TRUE(rejects({.next = next, .returned = {at(0, 0, 4), at(0, 0, 6), at(0, 0, 5)}}));
  EXPECT_TRUE(rejects({.next = next, .returned = {at(0, 1, 0), next + 1}}));
  RangeAccount files(TestData{.lengths = {}, .count_is_known = false}.sizes());
  EXPECT_EQ(error_code(files.restore({.next = at(9, 0, 0), .returned = {0}})),
            ErrorCode::kInvalidArgument)
      << "it would have a million unfinished ranges";
  EXPECT_FALSE(rejects({.next = next, .returned = {at(0, 0, 4)}}));
  EXPECT_THAT(account.take(0, 3), ElementsAre(NumberSpan{at(0, 0, 4), 3}));
}

}  // namespace
}  // namespace trireme::internal
