#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/coordinator/closure_queue.h"

// When the queue raises a fence, waits for it, abandons closures and waits for the oldest closure.
namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr auto kQueueLimit = seconds(20);

// Completes fences when the test says so. Thread-safe.
class ManualFence final : public ClosureFence {
 public:
  void raise(uint64_t below, OnComplete done) override {
    MutexLock lock(mutex_);
    raised_.push_back(below);
    pending_.push_back(std::move(done));
  }
  std::vector<std::string> awaited() const override { return {}; }
  void note_lost(const std::string& task) override {
    MutexLock lock(mutex_);
    lost_.push_back(task);
  }

  // Returns the sequences below which fences were raised, in order.
  std::vector<uint64_t> raised() const {
    MutexLock lock(mutex_);
    return raised_;
  }
  std::vector<std::string> lost() const {
    MutexLock lock(mutex_);
    return lost_;
  }
  void complete() {
    std::vector<OnComplete> pending;
    {
      MutexLock lock(mutex_);
      pending.swap(pending_);
    }
    for (OnComplete& done : pending) done({});
  }

 private:
  mutable Mutex mutex_;
  std::vector<uint64_t> raised_ ABSL_GUARDED_BY(mutex_);
  std::vector<OnComplete> pending_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> lost_ ABSL_GUARDED_BY(mutex_);
};

class SilentTaker final : public ClosureTaker {
 public:
  bool on_closures() override { return true; }
  int worker() const override { return 3; }
  bool is_idle() const override { return true; }
};

class ClosureQueueFences : public testing::Test {
 protected:
  ClosurePtr make() const {
    auto closure = std::make_shared<Closure>();
    closure->function = closure->current = function_;
    return closure;
  }
  ClosurePtr put() {
    auto closure = make();
    EXPECT_TRUE(queue_->put(closure).ok());
    return closure;
  }
  std::vector<ClosurePtr> take(size_t most = 1) { return queue_->take(taker_, minutes(1), most); }
  void finish(const ClosurePtr& closure, ClosureResult result = std::vector<at::Tensor>()) {
    std::vector<ClosureQueue::Finished> finished;
    finished.push_back({closure, std::move(result)});
    (void)queue_->finish(std::move(finished));
  }
  absl::Status join() { return queue_->join(after(kQueueLimit)); }
  bool is_done() { return value_or_throw(queue_->done()); }
  static absl::Status broken() { return make_status(ErrorCode::kInternal, "it is broken"); }

  // Makes a queue that abandons closures after `cancel_time`.
  void make_queue(Duration cancel_time, uint64_t most_open = 1000) {
    queue_ = std::make_shared<ClosureQueue>(
        1000,
        ClosureQueueOptions{.fence = fence_, .cancel_time = cancel_time, .most_open = most_open});
  }

  const std::shared_ptr<ClosureFunction> function_ = std::make_shared<ClosureFunction>();
  const std::shared_ptr<SilentTaker> taker_ = std::make_shared<SilentTaker>();
  const std::shared_ptr<ManualFence> fence_ = std::make_shared<ManualFence>();
  std::shared_ptr<ClosureQueue> queue_ =
      std::make_shared<ClosureQueue>(1000, ClosureQueueOptions{.fence = fence_});
};

TEST_F(ClosureQueueFences, ClosuresThatSucceedNeedNoFence) {
  for (int i = 0; i < 10; ++i) put();
  for (const ClosurePtr& closure : take(10)) finish(closure);
  EXPECT_TRUE(join().ok());
  EXPECT_TRUE(is_done());
  queue_->close(broken());
  EXPECT_EQ(fence_->raised(), std::vector<uint64_t>{11}) << "closures were sent since the start";
}

TEST_F(ClosureQueueFences, JoinWaitsForAFenceIfAnAttemptDidNotEndWithAResult) {
  const auto a = put(), b = put();
  queue_->put_back(take(2));  // Their worker is lost, and may still run them.
  for (const ClosurePtr& closure : take(2)) finish(closure);
  EXPECT_TRUE(fence_->raised().empty()) << "nothing waits for it yet";
  EXPECT_FALSE(is_done());
  EXPECT_EQ(fence_->raised(), std::vector<uint64_t>{3});
  EXPECT_EQ(error_code(queue_->join(Time())), ErrorCode::kDeadlineExceeded);
  auto joined = std::async(std::launch::async, [&] { return join(); });
  EXPECT_FALSE(is_done());
  fence_->complete();
  EXPECT_TRUE(joined.get().ok());
  EXPECT_TRUE(is_done());
  EXPECT_TRUE(join().ok());
  EXPECT_EQ(fence_->raised().size(), 1u) << "one fence is enough";
}

TEST_F(ClosureQueueFences, AnErrorRaisesTheFenceAtOnceAndWaitsForIt) {
  const auto a = put(), b = put(), c = put();
  take(2);
  finish(a, broken());
  EXPECT_EQ(fence_->raised(), std::vector<uint64_t>{4}) << "b is still in flight";
  queue_->put_back({b});
  EXPECT_FALSE(is_done());
  EXPECT_FALSE(queue_->is_decided(*a)) << "fetch() would block";
  EXPECT_FALSE(queue_->is_decided(*c));
  auto joined = std::async(std::launch::async, [&] { return join(); });
  auto fetched = std::async(std::launch::async, [&] { return queue_->fetch(*c).status(); });
  fence_->complete();
  EXPECT_EQ(joined.get(), broken());
  EXPECT_EQ(error_code(fetched.get()), ErrorCode::kCancelled);
  EXPECT_EQ(queue_->fetch(*a).status(), broken());
  EXPECT_TRUE(is_done());
  EXPECT_EQ(fence_->raised().size(), 1u);

  // The next error needs a fence of its own.
  const auto d = put();
  take();
  finish(d, broken());
  EXPECT_EQ(fence_->raised(), (std::vector<uint64_t>{4, 5}));
  fence_->complete();
  EXPECT_EQ(queue_->admit(), broken());
}

TEST_F(ClosureQueueFences, AResultIsFetchedWithoutWaitingForAFence) {
  const auto a = put(), b = put();
  take(2);
  finish(a);
  finish(b, broken());
  EXPECT_TRUE(queue_->is_decided(*a));
  EXPECT_TRUE(queue_->fetch(*a).ok());
  EXPECT_FALSE(queue_->is_decided(*b));
}

TEST_F(ClosureQueueFences, ScheduleRaisesAnErrorOnceTheFenceIsComplete) {
  const auto a = put();
  take();
  finish(a, broken());
  auto next = std::async(std::launch::async, [&] { return queue_->put(make()); });
  auto admitted = std::async(std::launch::async, [&] { return queue_->admit(); });
  EXPECT_FALSE(is_done());
  fence_->complete();
  // One of them raises the error.
  EXPECT_NE(next.get().ok(), admitted.get().ok());
}

TEST_F(ClosureQueueFences, ADeadlineOfAClosureThatWasNeverSentNeedsNoFence) {
  auto closure = make();
  closure->deadline = Clock::real().now();
  EXPECT_TRUE(queue_->put(closure).ok());
  EXPECT_NE(queue_->expire(Clock::real().now()), 0u);
  EXPECT_EQ(error_code(queue_->fetch(*closure).status()), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(error_code(join()), ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(fence_->raised().empty());
}

TEST_F(ClosureQueueFences, ADeadlineOfAClosureInFlightRaisesAFence) {
  auto closure = make();
  closure->deadline = Clock::real().now();
  EXPECT_TRUE(queue_->put(closure).ok());
  take();
  EXPECT_NE(queue_->expire(Clock::real().now()), 0u);
  EXPECT_EQ(fence_->raised(), std::vector<uint64_t>{2});
  EXPECT_FALSE(queue_->is_decided(*closure));
  fence_->complete();
  EXPECT_TRUE(queue_->is_decided(*closure));
}

TEST_F(ClosureQueueFences, EveryCallToAClosedQueueWaitsForTheFence) {
  const auto a = put(), b = put();
  take();
  const absl::Status lost = make_status(ErrorCode::kDataLoss, "it is lost", {"/job:ps/task:1", ""});
  queue_->close(lost);
  EXPECT_EQ(fence_->lost(), std::vector<std::string>{"/job:ps/task:1"});
  EXPECT_EQ(fence_->raised(), std::vector<uint64_t>{3});
  EXPECT_FALSE(is_done());
  EXPECT_FALSE(queue_->is_decided(*b));
  auto joined = std::async(std::launch::async, [&] { return join(); });
  auto fetched = std::async(std::launch::async, [&] { return queue_->fetch(*a).status(); });
  fence_->complete();
  EXPECT_EQ(joined.get(), lost);
  EXPECT_EQ(error_code(fetched.get()), ErrorCode::kCancelled);
  EXPECT_EQ(queue_->done().status(), lost);
}

// The fence of an error also rejects the updates of closures that are being cancelled.
TEST_F(ClosureQueueFences, AClosureThatTheFenceRejectsIsCancelled) {
  const auto a = put(), b = put(), c = put();
  take(3);
  finish(a, broken());
  finish(b, make_status(ErrorCode::kAborted, "it is rejected", {"/job:ps/task:0", ""}));
  const absl::Status own =
      make_status(ErrorCode::kAborted, "it gave up", {"/job:worker/task:3", ""});
  finish(c, own);
  fence_->complete();
  EXPECT_EQ(join(), broken());
  EXPECT_EQ(error_code(queue_->fetch(*b).status()), ErrorCode::kCancelled);
  EXPECT_EQ(queue_->fetch(*c).status(), own);
}

// A worker may wait for a server that is frozen, or run a long operator.
TEST_F(ClosureQueueFences, AnErrorIsRaisedWithoutClosuresThatDoNotReturn) {
  make_queue(milliseconds(20));
  const auto failed = put(), finished = put(), requeued = put();
  auto late = make();
  late->deadline = Clock::real().now();
  EXPECT_TRUE(queue_->put(late).ok());
  take(4);
  finish(failed, broken());
  fence_->complete();
  EXPECT_EQ(join(), broken());
  EXPECT_TRUE(is_done());
  EXPECT_EQ(queue_->watermark(), 5u);
  EXPECT_TRUE(queue_->is_decided(*finished));
  EXPECT_EQ(error_code(queue_->fetch(*finished).status()), ErrorCode::kCancelled);
  EXPECT_EQ(queue_->expire(Clock::real().now()), 0u) << "its deadline does not count any more";

  // They return while the next closures are in flight, and change nothing.
  const auto next = put();
  EXPECT_EQ(take(), std::vector{next});
  finish(finished);
  finish(late, broken());
  queue_->put_back({requeued});
  EXPECT_TRUE(take().empty());
  EXPECT_EQ(error_code(queue_->fetch(*requeued).status()), ErrorCode::kCancelled);
  EXPECT_EQ(error_code(queue_->fetch(*finished).status()), ErrorCode::kCancelled);
  EXPECT_EQ(queue_->undecided(), 1u);
  EXPECT_FALSE(is_done());
  finish(next);
  EXPECT_TRUE(join().ok());
  EXPECT_EQ(queue_->watermark(), 6u);
}

// A dispatcher may hold closures while it supplies its worker with what they need, for longer than
// the error waits for them.
TEST_F(ClosureQueueFences, AbandonedClosuresStayGivenUpOnceTheErrorWasRaised) {
  make_queue(Duration::zero());
  const auto failed = put(), held = put();
  take(2);
  EXPECT_FALSE(queue_->is_given_up({held}));
  finish(failed, broken());
  EXPECT_TRUE(queue_->is_given_up({held})) << "an error is pending";
  fence_->complete();
  EXPECT_EQ(join(), broken());
  const auto next = put();
  EXPECT_EQ(take(), std::vector{next});
  EXPECT_FALSE(queue_->is_given_up({next}));
  EXPECT_TRUE(queue_->is_given_up({held}));
  EXPECT_TRUE(queue_->is_given_up({next, held}));
  queue_->put_back({held});
  EXPECT_TRUE(held->may_have_pushed);  // so its elements are not drawn again
  EXPECT_TRUE(take().empty());
  queue_->close(broken());
  EXPECT_TRUE(queue_->is_given_up({next}));
}

TEST_F(ClosureQueueFences, NoClosureIsAbandonedBeforeTheFenceIsComplete) {
  make_queue(Duration::zero());
  const auto failed = put(), running = put();
  take(2);
  finish(failed, broken());
  auto joined = std::async(std::launch::async, [&] { return join(); });
  EXPECT_FALSE(is_done());
  EXPECT_EQ(queue_->undecided(), 1u);
  fence_->complete();
  EXPECT_EQ(joined.get(), broken());
  EXPECT_EQ(queue_->undecided(), 0u);
}

TEST_F(ClosureQueueFences, PutWaitsWhileTheOldestClosureHoldsTheRecords) {
  make_queue(seconds(3), 10);
  const auto oldest = put();
  take();
  for (int i = 0; i < 9; ++i) {
    put();
    finish(take()[0]);
  }
  EXPECT_EQ(queue_->undecided(), 1u);
  std::atomic<bool> is_put = false;
  auto waiting = std::async(std::launch::async, [&] {
    put();
    is_put = true;
  });
  EXPECT_EQ(waiting.wait_for(milliseconds(50)), std::future_status::timeout);
  EXPECT_FALSE(is_put);
  finish(oldest);
  ASSERT_EQ(waiting.wait_for(kQueueLimit), std::future_status::ready);

  // A closure that repeats more often than the limit can run alone.
  finish(take()[0]);
  auto repeated = make();
  repeated->repeat = 100;
  EXPECT_TRUE(queue_->put(repeated).ok());
}

// Uses the queue when it is destroyed, as an object of the user may do.
struct UsesQueue {
  explicit UsesQueue(ClosureQueue& queue) : queue(queue) {}
  ~UsesQueue() { queue.undecided(); }
  ClosureQueue& queue;
};

TEST_F(ClosureQueueFences, ObjectsOfTheUserAreReleasedWithoutTheLock) {
  const auto put_holding = [&](std::optional<Time> deadline = std::nullopt) {
    auto closure = make();
    closure->deadline = deadline;
    auto held = std::make_shared<UsesQueue>(*queue_);
    const std::weak_ptr<UsesQueue> weak = held;
    closure->capture_again = [held = std::move(held)](const DrawnShapes&) {};
    EXPECT_TRUE(queue_->put(closure).ok());
    return std::pair(closure, weak);
  };
  const auto [failed, failed_holds] = put_holding();
  take();
  const auto [queued, queued_holds] = put_holding();
  finish(failed, broken());
  fence_->complete();
  EXPECT_EQ(join(), broken());
  EXPECT_TRUE(failed_holds.expired());
  EXPECT_TRUE(queued_holds.expired());

  const auto [late, late_holds] = put_holding(Clock::real().now());
  EXPECT_NE(queue_->expire(Clock::real().now()), 0u);
  EXPECT_TRUE(late_holds.expired()) << "it will never run";
  EXPECT_EQ(error_code(queue_->admit()), ErrorCode::kDeadlineExceeded);

  const auto [captured, captured_holds] = put_holding();
  const auto [after_close, after_close_holds] = put_holding();
  take(2);
  queue_->defer_capture(captured, [] {});
  queue_->close(broken());
  queue_->defer_capture(after_close, [] {});
  EXPECT_TRUE(captured_holds.expired());
  EXPECT_TRUE(after_close_holds.expired());
}

}  // namespace
}  // namespace trireme::internal
