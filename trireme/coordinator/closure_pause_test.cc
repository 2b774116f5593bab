#include "trireme/coordinator/closure_pause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr auto kPauseLimit = seconds(20);
constexpr auto kShort = milliseconds(30);

// Answers fences at once: with the next of the given answers, or confirmed. Thread-safe.
class AnsweringFence final : public ClosureFence {
 public:
  void raise(uint64_t below, OnComplete done) override {
    std::vector<std::string> answer;
    {
      MutexLock lock(mutex_);
      raised_.push_back(below);
      if (is_silent_) return silent_.push_back(std::move(done));
      if (!answers_.empty()) {
        answer = std::move(answers_.front());
        answers_.pop_front();
      }
    }
    done(answer);
  }
  std::vector<std::string> awaited() const override {
    MutexLock lock(mutex_);
    if (silent_.empty()) return {};
    return {"/job:ps/task:1"};
  }
  void note_lost(const std::string&) override {}

  void answer_with(std::vector<std::string> unconfirmed) {
    MutexLock lock(mutex_);
    answers_.push_back(std::move(unconfirmed));
  }
  void be_silent() {
    MutexLock lock(mutex_);
    is_silent_ = true;
  }
  uint64_t last_raised() const {
    MutexLock lock(mutex_);
    return raised_.empty() ? 0 : raised_.back();
  }

 private:
  mutable Mutex mutex_;
  std::deque<std::vector<std::string>> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<OnComplete> silent_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> raised_ ABSL_GUARDED_BY(mutex_);
  bool is_silent_ ABSL_GUARDED_BY(mutex_) = false;
};

class IdleTaker final : public ClosureTaker {
 public:
  bool on_closures() override { return false; }
  int worker() const override { return 3; }
  bool is_idle() const override { return true; }
};

// Calls a function of the test for each request to end closures.
class ScriptedWorkers final : public PausedWorkers {
 public:
  void cancel_unpushed() override {
    if (auto next = std::exchange(on_cancel, nullptr)) next();
  }
  std::vector<std::string> busy() const override { return {"/job:worker/task:3"}; }

  std::function<void()> on_cancel;
};

class ClosurePauses : public testing::Test {
 protected:
  using Paused = absl::StatusOr<std::unique_ptr<ClosurePause>>;

  ClosurePtr put() {
    auto closure = std::make_shared<Closure>();
    closure->function = closure->current = function_;
    EXPECT_TRUE(queue_->put(closure).ok());
    return closure;
  }
  std::vector<ClosurePtr> take(size_t most = 10) { return queue_->take(taker_, minutes(1), most); }
  void finish(const ClosurePtr& closure, ClosureResult result = std::vector<at::Tensor>()) {
    std::vector<ClosureQueue::Finished> finished;
    finished.push_back({closure, std::move(result)});
    (void)queue_->finish(std::move(finished));
  }
  Paused pause(Time drain_until = after(kPauseLimit), Time limit = after(kPauseLimit)) {
    return pause_closures(queue_, workers_, drain_until, limit);
  }
  std::future<Paused> pause_in_background() {
    return std::async(std::launch::async, [this] { return pause(); });
  }
  // Takes closures until one is handed out. Returns none if that takes too long.
  std::vector<ClosurePtr> take_some() {
    for (const Time end = after(kPauseLimit); Clock::real().now() < end;) {
      if (auto taken = take(); !taken.empty()) return taken;
    }
    return {};
  }
  static absl::Status broken() { return make_status(ErrorCode::kInternal, "it is broken"); }

  const std::shared_ptr<ClosureFunction> function_ = std::make_shared<ClosureFunction>();
  const std::shared_ptr<IdleTaker> taker_ = std::make_shared<IdleTaker>();
  const std::shared_ptr<AnsweringFence> fence_ = std::make_shared<AnsweringFence>();
  const std::shared_ptr<ClosureQueue> queue_ =
      std::make_shared<ClosureQueue>(1000, ClosureQueueOptions{.fence = fence_});
  ScriptedWorkers workers_;
};

TEST_F(ClosurePauses, NoClosureIsTakenUntilThePauseEnds) {
  const auto a = put(), b = put();
  auto paused = pause();
  ASSERT_TRUE(paused.ok());
  EXPECT_EQ((*paused)->below(), a->sequence);
  EXPECT_EQ(fence_->last_raised(), a->sequence);
  EXPECT_TRUE(take().empty());
  const auto c = put();
  EXPECT_TRUE(take().empty());
  EXPECT_EQ(queue_->undecided(), 3u);
  EXPECT_FALSE(queue_->done().value());
  EXPECT_EQ(error_code(queue_->join(after(kShort))), ErrorCode::kDeadlineExceeded);
  paused->reset();
  EXPECT_EQ(take(), (std::vector{a, b, c}));
  for (const auto& closure : {a, b, c}) finish(closure);
  EXPECT_TRUE(queue_->join(after(kPauseLimit)).ok());
}

TEST_F(ClosurePauses, ClosuresInFlightEndFirst) {
  const auto a = put(), b = put();
  take(1);
  auto paused = pause_in_background();
  EXPECT_EQ(paused.wait_for(kShort), std::future_status::timeout);
  finish(a);
  const Paused held = paused.get();
  ASSERT_TRUE(held.ok());
  EXPECT_TRUE(queue_->fetch(*a).ok());
  EXPECT_EQ((*held)->below(), b->sequence);
}

TEST_F(ClosurePauses, ClosuresThatHaveNotPushedRunAfterThePause) {
  const auto a = put(), b = put(), c = put();
  take(2);
  workers_.on_cancel = [&] {
    finish(b);
    queue_->put_back_unpushed({a});
  };
  const uint64_t sequence = a->sequence;
  {
    const Paused held = pause(Clock::real().now());
    ASSERT_TRUE(held.ok());
    EXPECT_EQ((*held)->below(), sequence) << "it has not begun";
    EXPECT_TRUE(take().empty());
  }
  EXPECT_EQ(take(), (std::vector{a, c}));
  EXPECT_EQ(a->sequence, sequence);
  EXPECT_FALSE(a->may_have_pushed);
}

TEST_F(ClosurePauses, AClosureThatMayHavePushedRunsToItsEndFirst) {
  const auto a = put(), b = put();
  take(1);
  auto paused = pause_in_background();
  EXPECT_EQ(paused.wait_for(kShort), std::future_status::timeout);
  queue_->put_back({a});  // Its worker is lost.
  EXPECT_EQ(paused.wait_for(kShort), std::future_status::timeout);
  EXPECT_EQ(take_some(), std::vector{a}) << "only this one";
  EXPECT_TRUE(a->may_have_pushed);
  finish(a);
  const Paused held = paused.get();
  ASSERT_TRUE(held.ok());
  EXPECT_EQ((*held)->below(), b->sequence);
  EXPECT_EQ(fence_->last_raised(), b->sequence) << "it keeps the lost worker out";
}

TEST_F(ClosurePauses, AClosureThatWasRequeuedBeforeRunsToItsEndFirstToo) {
  const auto a = put(), b = put();
  queue_->put_back(take());
  auto paused = pause_in_background();
  EXPECT_EQ(paused.wait_for(kShort), std::future_status::timeout);
  for (const ClosurePtr& closure : take_some()) finish(closure);
  EXPECT_TRUE(paused.get().ok());
  EXPECT_TRUE(queue_->is_decided(*a) && queue_->is_decided(*b));
}

// A fence cannot leave out a single closure.
TEST_F(ClosurePauses, AClosureThatIsOlderThanALostOneGetsANewSequence) {
  const auto a = put(), b = put();
  take();
  workers_.on_cancel = [&] {
    queue_->put_back_unpushed({a});
    queue_->put_back({b});
    EXPECT_EQ(take(), std::vector{b});
    finish(b);
  };
  {
    const Paused held = pause(Clock::real().now());
    ASSERT_TRUE(held.ok());
    EXPECT_EQ(a->sequence, 3u);
    EXPECT_EQ((*held)->below(), 3u);
    EXPECT_EQ(fence_->last_raised(), 3u);
  }
  EXPECT_EQ(take(), std::vector{a});
  finish(a);
  EXPECT_EQ(queue_->watermark(), 4u);
  EXPECT_TRUE(queue_->join(after(kPauseLimit)).ok());
}

TEST_F(ClosurePauses, TimesOutNamingTheWorkerAndTheQueueGoesOn) {
  const auto a = put(), b = put();
  take(1);
  const Paused held = pause(Clock::real().now(), after(kShort));
  EXPECT_EQ(error_code(held.status()), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(describe(held.status()), HasSubstr("/job:worker/task:3"));
  EXPECT_EQ(take(), std::vector{b});
}

TEST_F(ClosurePauses, TimesOutNamingAServerForWhichClosuresWait) {
  fence_->be_silent();
  put();
  take();
  const Paused held = pause(Clock::real().now(), after(kShort));
  EXPECT_EQ(error_code(held.status()), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(describe(held.status()), HasSubstr("/job:ps/task:1"));
}

TEST_F(ClosurePauses, TimesOutNamingAServerThatDoesNotConfirmTheFence) {
  const auto a = put();
  fence_->answer_with({"/job:ps/task:1"});
  const Paused held = pause(after(kPauseLimit), after(kShort));
  EXPECT_EQ(error_code(held.status()), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(error_origin(held.status()).task, "/job:ps/task:1");
  EXPECT_EQ(take(), std::vector{a});
}

TEST_F(ClosurePauses, AsksAServerAgainThatDidNotConfirmTheFence) {
  fence_->answer_with({"/job:ps/task:1"});
  EXPECT_TRUE(pause().ok());
}

TEST_F(ClosurePauses, ReturnsThePendingErrorWhichIsRaisedAsUsual) {
  const auto a = put(), b = put();
  take(1);
  auto paused = pause_in_background();
  EXPECT_EQ(paused.wait_for(kShort), std::future_status::timeout);
  finish(a, broken());
  EXPECT_EQ(paused.get().status(), broken());
  EXPECT_EQ(pause().status(), broken());
  EXPECT_EQ(error_code(queue_->fetch(*b).status()), ErrorCode::kCancelled);
  EXPECT_EQ(queue_->join(after(kPauseLimit)), broken());
  EXPECT_TRUE(pause().ok());
}

TEST_F(ClosurePauses, ADeadlineCanPassDuringAPause) {
  auto late = std::make_shared<Closure>();
  late->function = late->current = function_;
  late->deadline = Clock::real().now();
  EXPECT_TRUE(queue_->put(late).ok());
  auto held = pause();
  ASSERT_TRUE(held.ok());
  EXPECT_NE(queue_->expire(Clock::real().now()), 0u);
  EXPECT_EQ(error_code(queue_->fetch(*late).status()), ErrorCode::kDeadlineExceeded);
  held->reset();
  EXPECT_TRUE(take().empty());
}

TEST_F(ClosurePauses, CloseEndsAPause) {
  put();
  take();
  auto paused = pause_in_background();
  EXPECT_EQ(paused.wait_for(kShort), std::future_status::timeout);
  queue_->close(broken());
  EXPECT_EQ(paused.get().status(), broken());
}

TEST_F(ClosurePauses, CloseEndsThePauseThatWaitsForAServer) {
  fence_->be_silent();
  auto paused = pause_in_background();
  EXPECT_EQ(paused.wait_for(kShort), std::future_status::timeout);
  queue_->close(broken());
  EXPECT_EQ(paused.get().status(), broken());
}

TEST_F(ClosurePauses, ASecondPauseWaitsForTheFirst) {
  auto first = pause();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(error_code(pause(Time(), after(kShort)).status()), ErrorCode::kDeadlineExceeded);
  auto second = pause_in_background();
  EXPECT_EQ(second.wait_for(kShort), std::future_status::timeout);
  first->reset();
  Paused held = second.get();
  ASSERT_TRUE(held.ok());
  const auto a = put();
  EXPECT_TRUE(take().empty());
  held->reset();
  EXPECT_EQ(take(), std::vector{a});
}

TEST_F(ClosurePauses, RunsDeferredCaptures) {
  const auto a = put();
  take();
  queue_->defer_capture(a, [&] { finish(a); });
  EXPECT_TRUE(pause().ok());
  EXPECT_TRUE(queue_->fetch(*a).ok());
}

TEST_F(ClosurePauses, AFullQueueBlocksPutUntilThePauseEnds) {
  const auto small = std::make_shared<ClosureQueue>(1);
  const auto put_one = [&] {
    auto closure = std::make_shared<Closure>();
    closure->function = closure->current = function_;
    return small->put(closure);
  };
  EXPECT_TRUE(put_one().ok());
  auto held = pause_closures(small, workers_, Time(), after(kPauseLimit));
  ASSERT_TRUE(held.ok());
  auto second = std::async(std::launch::async, put_one);
  EXPECT_EQ(second.wait_for(kShort), std::future_status::timeout);
  held->reset();
  EXPECT_EQ(small->take(taker_).size(), 1u);
  EXPECT_TRUE(second.get().ok());
}

}  // namespace
}  // namespace trireme::internal
