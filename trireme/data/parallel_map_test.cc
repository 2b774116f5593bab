#include "trireme/data/parallel_map.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <stdexcept>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/data/test_streams.h"
#include "trireme/testing/error_of.h"

namespace trireme::internal {
namespace {

// Maps an element to its number in the stream plus 100 times its value.
absl::StatusOr<Element> number_and_value(const Element& element, uint64_t number) {
  return number_element(static_cast<int64_t>(number) + 100 * number_in(element));
}

absl::StatusOr<Element> same_element(const Element& element, uint64_t) {
  return element;
}

TEST(ParallelMap, MapsAllElementsInOrder) {
  for (int threads : {1, 2, 5}) {
    const auto stream =
        open_parallel_map(threads, std::make_unique<NumberStream>(200), 7, number_and_value);
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(next_number(*stream), 101 * i + 7);
    EXPECT_EQ(next_number(*stream), std::nullopt);
    EXPECT_EQ(next_number(*stream), std::nullopt);
  }
}

TEST(ParallelMap, MapsElementsAtTheSameTime) {
  Mutex mutex;
  CondVar changed;
  std::set<int64_t> begun;
  // An even number waits until the odd one after it has begun.
  const auto wait_for_next = [&](const Element& element, uint64_t) -> absl::StatusOr<Element> {
    const int64_t number = number_in(element);
    const Time limit = after(std::chrono::seconds(20));
    MutexLock lock(mutex);
    begun.insert(number);
    changed.notify_all();
    while (number % 2 == 0 && !begun.contains(number + 1)) {
      if (!changed.wait_until(mutex, limit)) {
        return make_status(ErrorCode::kDeadlineExceeded, "nobody maps the next element");
      }
    }
    return element;
  };
  const auto stream = open_parallel_map(2, std::make_unique<NumberStream>(20), 0, wait_for_next);
  EXPECT_EQ(numbers_left(*stream), numbers_between(0, 20));
}

TEST(ParallelMap, ReturnsErrorsInOrderAndGoesOn) {
  for (bool throws : {false, true}) {
    const auto stream =
        open_parallel_map(3, std::make_unique<NumberStream>(30), 0,
                          [&](const Element& element, uint64_t number) -> absl::StatusOr<Element> {
                            if (number % 10 != 9) return element;
                            if (throws) throw std::runtime_error("no");
                            return make_status(ErrorCode::kOutOfRange, "no");
                          });
    for (int64_t ten = 0; ten < 30; ten += 10) {
      EXPECT_EQ(numbers_left(*stream, 9), numbers_between(ten, ten + 9));
      const Error error = error_of([&] { next_number(*stream); });
      EXPECT_EQ(error.code(), throws ? ErrorCode::kInternal : ErrorCode::kOutOfRange);
    }
    EXPECT_EQ(next_number(*stream), std::nullopt);
  }
}

TEST(ParallelMap, ReturnsErrorsOfItsInputInOrder) {
  const auto stream =
      open_parallel_map(3, std::make_unique<NumberStream>(10, nullptr, /*bad=*/4), 0, same_element);
  EXPECT_EQ(numbers_left(*stream, 4), numbers_between(0, 4));
  EXPECT_EQ(error_of([&] { next_number(*stream); }).code(), ErrorCode::kDataLoss);
  EXPECT_EQ(numbers_left(*stream), numbers_between(5, 10));
}

TEST(ParallelMap, SkipsAnyNumberOfElements) {
  for (int threads : {1, 4}) {
    expect_skips([&] {
      return open_parallel_map(threads, std::make_unique<NumberStream>(20), 0, same_element);
    });
  }
}

TEST(ParallelMap, CountsElementsThatItSkips) {
  for (int64_t first : {0, 3}) {
    for (int64_t count : {1, 4, 50}) {
      const auto stream =
          open_parallel_map(3, std::make_unique<NumberStream>(100), 0, number_and_value);
      numbers_left(*stream, first);
      EXPECT_EQ(value_or_throw(stream->skip(count)), count);
      EXPECT_EQ(next_number(*stream), 101 * (first + count));
    }
  }
}

TEST(ParallelMap, SkipsElementsThatCannotBeMapped) {
  for (int64_t count : {2, 30}) {
    const auto stream =
        open_parallel_map(2, std::make_unique<NumberStream>(100), 0,
                          [](const Element& element, uint64_t number) -> absl::StatusOr<Element> {
                            if (number == 1 || number == 2)
                              return make_status(ErrorCode::kOutOfRange, "no");
                            return element;
                          });
    EXPECT_EQ(next_number(*stream), 0);
    EXPECT_EQ(value_or_throw(stream->skip(count)), count);
    EXPECT_EQ(next_number(*stream), 1 + count);
  }
}

TEST(ParallelMap, EndsItsThreadsWhereverTheyAre) {
  for (int64_t taken = 0; taken < 30; ++taken) {
    const auto stream = open_parallel_map(4, std::make_unique<NumberStream>(20), 0, same_element);
    numbers_left(*stream, static_cast<size_t>(taken));
  }
}

}  // namespace
}  // namespace trireme::internal
