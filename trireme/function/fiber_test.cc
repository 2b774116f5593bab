#include "trireme/function/fiber.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trireme::internal {
namespace {

using testing::ElementsAre;

TEST(Fiber, RunsFromPauseToPauseOnTheThreadOfItsCaller) {
  std::vector<std::string> events;
  std::unique_ptr<Fiber> fiber;
  fiber = std::make_unique<Fiber>([&, caller = std::this_thread::get_id()] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    events.push_back("begins");
    fiber->pause();
    events.push_back("goes on");
    fiber->pause();
    events.push_back("ends");
  });
  EXPECT_TRUE(events.empty());
  fiber->resume();
  events.push_back("caller");
  fiber->resume();
  EXPECT_FALSE(fiber->ended());
  fiber->resume();
  EXPECT_TRUE(fiber->ended());
  EXPECT_THAT(events, ElementsAre("begins", "caller", "goes on", "ends"));
}

TEST(Fiber, RethrowsTheExceptionOfItsBody) {
  Fiber fiber([] { throw std::runtime_error("stop"); });
  EXPECT_THROW(fiber.resume(), std::runtime_error);
  EXPECT_TRUE(fiber.ended());
}

TEST(Fiber, UnwindsABodyThatIsPaused) {
  int left = 0;
  bool caught_as_standard_exception = false, went_on = false;
  {
    std::unique_ptr<Fiber> fiber;
    fiber = std::make_unique<Fiber>([&] {
      const std::shared_ptr<void> outer(nullptr, [&](void*) { ++left; });
      try {
        const std::shared_ptr<void> inner(nullptr, [&](void*) { ++left; });
        fiber->pause();
        went_on = true;
      } catch (const std::exception&) {
        caught_as_standard_exception = true;
      }
    });
    fiber->resume();
    EXPECT_FALSE(fiber->ended());
    EXPECT_EQ(left, 0);
  }
  EXPECT_EQ(left, 2);
  EXPECT_FALSE(caught_as_standard_exception);
  EXPECT_FALSE(went_on);
}

TEST(Fiber, ThatIsUnwoundDoesNotPauseAgain) {
  int pauses = 0;
  std::string outcome;
  Fiber* fiber = nullptr;
  fiber = new Fiber([&] {
    const std::shared_ptr<void> at_end(nullptr, [&](void*) { outcome = "ended"; });
    while (pauses < 3) {
      try {
        fiber->pause();
      } catch (...) {
        ++pauses;
      }
    }
    throw std::runtime_error("is dropped");
  });
  fiber->resume();
  delete fiber;
  EXPECT_EQ(pauses, 3);
  EXPECT_EQ(outcome, "ended");
}

TEST(Fiber, NeedNotBegin) {
  bool begun = false;
  {
    const Fiber fiber([&] { begun = true; });
  }
  EXPECT_FALSE(begun);
}

// Handlers of exceptions that overlap in time must not be mixed up: each is on its own stack.
TEST(Fiber, MayPauseInAnExceptionHandler) {
  std::array<std::unique_ptr<Fiber>, 2> fibers;
  std::vector<std::string> rethrown;
  for (auto& fiber : fibers) {
    fiber = std::make_unique<Fiber>([&, number = &fiber - fibers.data()] {
      try {
        throw std::runtime_error(std::to_string(number));
      } catch (const std::exception&) {
        EXPECT_EQ(std::uncaught_exceptions(), 0);
        fiber->pause();
        try {
          throw;
        } catch (const std::exception& again) {
          rethrown.push_back(again.what());
        }
      }
    });
  }
  try {
    throw std::runtime_error("caller");
  } catch (const std::exception&) {
    for (auto& fiber : fibers) fiber->resume();
    for (auto& fiber : fibers) fiber->resume();
    try {
      throw;
    } catch (const std::exception& again) {
      rethrown.push_back(again.what());
    }
  }
  EXPECT_THAT(rethrown, ElementsAre("0", "1", "caller"));
}

// Returns the sum of the numbers up to `depth`, with a kilobyte of stack for each.
int sum_deeply(int depth) {
  volatile char frame[1024];
  frame[depth % 1024] = 1;
  return depth == 0 ? 0 : depth + sum_deeply(depth - 1) + frame[depth % 1024] - 1;
}

TEST(Fiber, HasAStackForDeepCalls) {
  int sum = 0;
  for (int i = 0; i < 3; ++i) {
    Fiber fiber([&] { sum += sum_deeply(1000); });
    fiber.resume();
  }
  EXPECT_EQ(sum, 3 * 500500);
}

}  // namespace
}  // namespace trireme::internal
