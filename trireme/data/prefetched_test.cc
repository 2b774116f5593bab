#include "trireme/data/prefetched.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/data/test_streams.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {
namespace {

constexpr int64_t kEndlessNumbers = std::numeric_limits<int64_t>::max();

TEST(Prefetched, GivesAllElementsInOrder) {
  for (int64_t count : {1, 2, 5, 100}) {
    const auto stream = open_prefetched(count, std::make_unique<NumberStream>(20));
    EXPECT_EQ(numbers_left(*stream), numbers_between(0, 20));
    EXPECT_EQ(next_number(*stream), std::nullopt);
    EXPECT_EQ(value_or_throw(stream->skip(3)), 0);
  }
}

TEST(Prefetched, MakesElementsInAdvanceAndNotMore) {
  StreamCalls calls;
  const auto stream = open_prefetched(4, std::make_unique<NumberStream>(kEndlessNumbers, &calls));
  EXPECT_EQ(calls.made, 0);
  for (int64_t taken = 1; taken <= 50; ++taken) {
    next_number(*stream);
    EXPECT_LE(calls.made, taken + 4);
    EXPECT_TRUE(wait_until([&] { return calls.made == taken + 4; }, std::chrono::seconds(10)));
  }
}

TEST(Prefetched, ReturnsErrorsInOrderAndGoesOn) {
  for (bool throws : {false, true}) {
    const auto stream =
        open_prefetched(8, std::make_unique<NumberStream>(6, nullptr, /*bad=*/3, throws));
    EXPECT_EQ(numbers_left(*stream, 3), numbers_between(0, 3));
    const Error error = error_of([&] { next_number(*stream); });
    EXPECT_EQ(error.code(), throws ? ErrorCode::kInternal : ErrorCode::kDataLoss);
    EXPECT_EQ(numbers_left(*stream), numbers_between(4, 6));
  }
}

TEST(Prefetched, SkipsAnyNumberOfElements) {
  for (int64_t count : {1, 3, 50}) {
    expect_skips([&] { return open_prefetched(count, std::make_unique<NumberStream>(20)); });
  }
}

TEST(Prefetched, SkipsInTheInputWithoutMakingElements) {
  StreamCalls calls;
  const auto stream = open_prefetched(2, std::make_unique<NumberStream>(1000, &calls));
  EXPECT_EQ(value_or_throw(stream->skip(500)), 500);
  EXPECT_EQ(calls.made, 0);
  EXPECT_EQ(next_number(*stream), 500);
  EXPECT_EQ(value_or_throw(stream->skip(400)), 400);
  EXPECT_LE(calls.made, 3);
  EXPECT_EQ(next_number(*stream), 901);
}

TEST(Prefetched, SkipsOfFewElementsDoNotEndTheThread) {
  StreamCalls calls;
  const auto stream = open_prefetched(4, std::make_unique<NumberStream>(20, &calls));
  for (int64_t number = 0; number < 20; number += 4) {
    EXPECT_EQ(next_number(*stream), number);
    EXPECT_EQ(value_or_throw(stream->skip(3)), 3);
  }
  EXPECT_EQ(calls.skipped, 0);
}

TEST(Prefetched, ReturnsTheErrorOfAnElementThatItSkips) {
  const auto stream = open_prefetched(8, std::make_unique<NumberStream>(6, nullptr, /*bad=*/2));
  EXPECT_EQ(next_number(*stream), 0);
  EXPECT_EQ(error_code(stream->skip(4).status()), ErrorCode::kDataLoss);
}

TEST(Prefetched, EndsItsThreadWhereverItIs) {
  for (int64_t taken = 0; taken < 50; ++taken) {
    const auto stream = open_prefetched(1 + taken % 5, std::make_unique<NumberStream>(20));
    numbers_left(*stream, static_cast<size_t>(taken));
  }
}

TEST(Prefetched, CanBeNested) {
  const auto stream = open_prefetched(
      3, open_prefetched(5, open_prefetched(1, std::make_unique<NumberStream>(200))));
  EXPECT_EQ(numbers_left(*stream), numbers_between(0, 200));
}

// Remembers how it was called.
class ObservedStream : public NumberStream {
 public:
  ObservedStream(std::thread::id* caller, int* threads)
      : NumberStream(1), caller_(caller), threads_(threads) {}
  Next<Element> next() override {
    *caller_ = std::this_thread::get_id();
    *threads_ = at::get_num_threads();
    return NumberStream::next();
  }

 private:
  std::thread::id* const caller_;
  int* const threads_;
};

TEST(Prefetched, UsesAThreadWithTheSettingsOfTheCaller) {
  const int before = at::get_num_threads();
  std::thread::id caller;
  int threads = 0;
  // The setting of a thread is its own; another thread changes what new threads begin with.
  at::set_num_threads(3);
  std::thread([] { at::set_num_threads(1); }).join();
  {
    const auto stream = open_prefetched(1, std::make_unique<ObservedStream>(&caller, &threads));
    numbers_left(*stream);
  }
  at::set_num_threads(before);
  EXPECT_NE(caller, std::this_thread::get_id());
  EXPECT_EQ(threads, 3);
}

}  // namespace
}  // namespace trireme::internal
