#include "trireme/coordinator/closure_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class CountingTaker : public ClosureTaker {
 public:
  explicit CountingTaker(bool takes = true) : takes_(takes) {}
  bool on_closures() override {
    ++woken;
    return takes_;
  }
  int worker() const override { return 3; }
  bool is_idle() const override { return idle; }
  bool idle = true;
  std::atomic<int> woken = 0;

 private:
  const bool takes_;
};

class ClosureQueueTest : public testing::Test {
 protected:
  ClosurePtr put() {
    auto closure = std::make_shared<Closure>();
    closure->function = closure->current = function_;
    EXPECT_TRUE(queue_.put(closure).ok());
    return closure;
  }
  std::vector<ClosurePtr> take(size_t most = 1) { return queue_.take(taker_, seconds(1), most); }
  bool finish(const ClosurePtr& closure, ClosureResult result = std::vector<at::Tensor>()) {
    std::vector<ClosureQueue::Finished> finished;
    finished.push_back({closure, std::move(result)});
    return queue_.finish(std::move(finished)) != 0;
  }
  static absl::Status failure() { return make_status(ErrorCode::kInternal, "it failed"); }

  const std::shared_ptr<ClosureFunction> function_ = std::make_shared<ClosureFunction>();
  const std::shared_ptr<CountingTaker> taker_ = std::make_shared<CountingTaker>();
  const std::shared_ptr<ClosureQueue> shared_queue_ = std::make_shared<ClosureQueue>(4);
  ClosureQueue& queue_ = *shared_queue_;
};

TEST_F(ClosureQueueTest, TakesClosuresInOrderAndRequeuedOnesFirst) {
  const auto a = put(), b = put(), c = put();
  EXPECT_EQ(a->sequence, 1u);
  EXPECT_EQ(c->sequence, 3u);
  const auto taken = take(2);
  EXPECT_EQ(taken, (std::vector{a, b}));
  queue_.put_back(taken);
  EXPECT_EQ(take(3), (std::vector{a, b, c}));
  for (const auto& closure : {b, a, c}) queue_.put_back({closure});
  EXPECT_EQ(take(3), (std::vector{a, b, c}));
}

TEST_F(ClosureQueueTest, LimitsABatchByItsEstimatedTime) {
  for (int i = 0; i < 64; ++i) function_->cost.note(milliseconds(10));
  const auto a = put(), b = put(), c = put();
  EXPECT_EQ(queue_.take(taker_, milliseconds(25), 10).size(), 2u);
  EXPECT_EQ(queue_.take(taker_, milliseconds(1), 10).size(), 1u);
}

TEST_F(ClosureQueueTest, PutBlocksWhileTheQueueIsFullAndPutBackDoesNot) {
  for (int i = 0; i < 4; ++i) put();
  const auto taken = take(4);
  for (int i = 0; i < 4; ++i) put();
  auto fifth = std::async(std::launch::async, [&] { return put(); });
  EXPECT_EQ(fifth.wait_for(milliseconds(50)), std::future_status::timeout);
  queue_.put_back(taken);  // eight are queued now
  EXPECT_EQ(fifth.wait_for(milliseconds(50)), std::future_status::timeout);
  EXPECT_EQ(take(8).size(), 8u);
  ASSERT_EQ(fifth.wait_for(seconds(10)), std::future_status::ready);
}

TEST_F(ClosureQueueTest, TheWatermarkIsTheFirstUndecidedSequence) {
  const auto a = put(), b = put(), c = put();
  take(3);
  EXPECT_EQ(queue_.watermark(), 1u);
  EXPECT_FALSE(finish(b));
  EXPECT_EQ(queue_.watermark(), 1u);
  EXPECT_FALSE(finish(a));
  EXPECT_EQ(queue_.watermark(), 3u);
  EXPECT_FALSE(finish(c));
  EXPECT_EQ(queue_.watermark(), 4u);
}

TEST_F(ClosureQueueTest, RaisesTheFirstErrorOnceWhenNoClosureIsInFlight) {
  const auto a = put(), b = put(), c = put();
  take(2);
  EXPECT_TRUE(finish(a, failure()));
  EXPECT_EQ(error_code(queue_.fetch(*c).status()), ErrorCode::kCancelled);
  EXPECT_FALSE(queue_.done().value());  // b is in flight
  EXPECT_FALSE(finish(b, make_status(ErrorCode::kInternal, "another")));
  EXPECT_EQ(queue_.join(), failure());
  EXPECT_TRUE(queue_.join().ok());
  EXPECT_EQ(queue_.fetch(*a).status(), failure());
  const auto d = put();
  take();
  EXPECT_FALSE(finish(d));
  EXPECT_TRUE(queue_.done().value());
}

// Closures that are scheduled after the error must not be cancelled.
TEST_F(ClosureQueueTest, AnErrorReturnsTheSequenceBelowWhichToCancel) {
  const auto a = put(), b = put();
  take(2);
  std::vector<ClosureQueue::Finished> finished;
  finished.push_back({a, failure()});
  EXPECT_EQ(queue_.finish(std::move(finished)), b->sequence + 1);
  EXPECT_FALSE(finish(b, failure()));
  EXPECT_EQ(queue_.admit(), failure());
  EXPECT_EQ(put()->sequence, b->sequence + 1);
}

TEST_F(ClosureQueueTest, CancelsClosuresThatArePutBackAfterAnError) {
  const auto a = put(), b = put();
  const auto taken = take(2);
  EXPECT_TRUE(finish(a, failure()));
  queue_.put_back({b});
  EXPECT_EQ(error_code(queue_.fetch(*b).status()), ErrorCode::kCancelled);
  EXPECT_EQ(error_code(queue_.put(std::make_shared<Closure>())), ErrorCode::kInternal);
}

TEST_F(ClosureQueueTest, EveryCallToAClosedQueueReturnsItsError) {
  const auto a = put(), b = put();
  take();
  auto joined = std::async(std::launch::async, [&] { return queue_.join(); });
  queue_.close(failure());
  EXPECT_EQ(joined.get(), failure());
  EXPECT_EQ(queue_.join(), failure());
  EXPECT_EQ(queue_.done().status(), failure());
  EXPECT_EQ(queue_.put(std::make_shared<Closure>()), failure());
  EXPECT_EQ(error_code(queue_.fetch(*a).status()), ErrorCode::kCancelled);
  EXPECT_EQ(error_code(queue_.fetch(*b).status()), ErrorCode::kCancelled);
}

TEST_F(ClosureQueueTest, NotifiesOneTakerAndTheNextIfItTakesNothing) {
  const auto gone = std::make_shared<CountingTaker>(false);
  EXPECT_TRUE(queue_.take(gone, seconds(1), 1).empty());
  EXPECT_TRUE(take().empty());
  put();
  EXPECT_EQ(gone->woken, 1);
  EXPECT_EQ(taker_->woken, 1);
  put();
  EXPECT_EQ(taker_->woken, 1);  // No taker waits any more.
}

TEST_F(ClosureQueueTest, ShortClosuresOfABurstAreTakenTogether) {
  const auto queue = std::make_shared<ClosureQueue>(1000);
  for (int i = 0; i < 64; ++i) function_->cost.note({});
  const auto put = [&] {
    auto closure = std::make_shared<Closure>();
    closure->function = closure->current = function_;
    EXPECT_TRUE(queue->put(closure).ok());
  };
  // A burst wakes the taker at most once for its first closure, and then once for each batch. If
  // the machine delays the test for a moment, the burst ends early, so the test tries again.
  int together = 0;
  for (const Time end = after(seconds(30)); together == 0 && Clock::real().now() < end;) {
    EXPECT_TRUE(queue->take(taker_).empty());
    put();
    queue->take(taker_);
    EXPECT_TRUE(queue->take(taker_).empty());
    const int before = taker_->woken;
    for (int i = 0; i < 64 && taker_->woken == before; ++i) put();
    if (queue->take(taker_).size() == 64) ++together;
    while (!queue->take(taker_).empty()) {
    }
  }
  EXPECT_EQ(together, 1);
  // The rest of a burst, too small for a batch, is announced after a delay.
  EXPECT_TRUE(queue->take(taker_).empty());
  const int before = taker_->woken;
  for (int i = 0; i < 5; ++i) put();
  const Time limit = after(seconds(10));
  while (taker_->woken == before && Clock::real().now() < limit) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_GT(taker_->woken, before);
}

TEST_F(ClosureQueueTest, AThreadThatWaitsRunsDeferredCaptures) {
  const auto closure = put();
  take();
  auto waiting = std::async(std::launch::async, [&] { return queue_.join(); });
  queue_.defer_capture(closure, [&] { EXPECT_FALSE(finish(closure)); });
  EXPECT_TRUE(waiting.get().ok());
}

TEST_F(ClosureQueueTest, CloseCancelsClosuresThatWaitForACapture) {
  const auto first = put(), second = put();
  take(2);
  bool ran = false;
  queue_.defer_capture(first, [&] { ran = true; });
  queue_.close(failure());
  queue_.defer_capture(second, [&] { ran = true; });
  EXPECT_EQ(error_code(queue_.fetch(*first).status()), ErrorCode::kCancelled);
  EXPECT_TRUE(queue_.is_decided(*first));
  EXPECT_TRUE(queue_.is_decided(*second));
  EXPECT_EQ(queue_.watermark(), 3u);
  EXPECT_EQ(queue_.join(), failure());
  EXPECT_FALSE(ran);
}

TEST_F(ClosureQueueTest, WakesIdleTakersFirst) {
  const auto busy = std::make_shared<CountingTaker>();
  busy->idle = false;
  EXPECT_TRUE(queue_.take(busy, seconds(1), 1).empty());
  EXPECT_TRUE(take().empty());
  put();
  EXPECT_EQ(busy->woken, 0);
  EXPECT_EQ(taker_->woken, 1);
}

TEST(DecidedSequences, TheWatermarkFollowsTheDecidedSequences) {
  DecidedSequences sequences;
  EXPECT_EQ(sequences.allocate(1), 1u);
  EXPECT_EQ(sequences.allocate(10), 2u);
  EXPECT_EQ(sequences.allocate(1), 12u);
  EXPECT_EQ(sequences.allocate(1), 13u);
  EXPECT_EQ(sequences.next(), 14u);
  sequences.decide(12, 1);
  EXPECT_EQ(sequences.watermark(), 1u);
  sequences.decide(1, 1);
  EXPECT_EQ(sequences.watermark(), 2u);
  sequences.decide(13, 1);
  sequences.decide(2, 10);
  EXPECT_EQ(sequences.watermark(), 14u);

  // Sequences decided in random order, compared with a plain set.
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    DecidedSequences some;
    std::vector<std::pair<uint64_t, uint64_t>> given;
    for (int i = 0; i < 20; ++i) {
      const uint64_t count = 1 + random() % 5;
      given.push_back({some.allocate(count), count});
    }
    std::shuffle(given.begin(), given.end(), random);
    std::set<uint64_t> open;
    for (uint64_t i = 1; i < some.next(); ++i) open.insert(i);
    for (const auto& [first, count] : given) {
      some.decide(first, count);
      for (uint64_t i = 0; i < count; ++i) open.erase(first + i);
      ASSERT_EQ(some.watermark(), open.empty() ? some.next() : *open.begin());
    }
  }
}

TEST_F(ClosureQueueTest, ADeadlineFailsAClosureInFlightAndCancelsTheOthers) {
  const auto put_with_deadline = [&](Time deadline) {
    auto closure = std::make_shared<Closure>();
    closure->function = closure->current = function_;
    closure->deadline = deadline;
    EXPECT_TRUE(queue_.put(closure).ok());
    return closure;
  };
  const Time now = Clock::real().now();
  const auto in_flight = put_with_deadline(now + seconds(1));
  EXPECT_EQ(queue_.next_expiry(), now + seconds(1));
  EXPECT_EQ(queue_.next_expiry(), std::nullopt);  // Returned already.
  take();
  const auto queued = put_with_deadline(now + seconds(2));
  EXPECT_FALSE(queue_.expire(now));
  EXPECT_FALSE(queue_.done().value());
  EXPECT_TRUE(queue_.expire(now + seconds(1)));
  const absl::Status late = queue_.fetch(*in_flight).status();
  EXPECT_EQ(error_code(late), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(error_origin(late).task, "/job:worker/task:3");
  EXPECT_EQ(error_code(queue_.fetch(*queued).status()), ErrorCode::kCancelled);
  EXPECT_EQ(queue_.next_expiry(), std::nullopt);
  EXPECT_FALSE(finish(in_flight));  // A late result is ignored.
  EXPECT_EQ(queue_.join(), late);
  EXPECT_EQ(queue_.watermark(), 3u);
}

TEST_F(ClosureQueueTest, ARepeatedClosureHasASequenceForEachRun) {
  auto closure = std::make_shared<Closure>();
  closure->function = closure->current = function_;
  closure->repeat = 10;
  EXPECT_TRUE(queue_.put(closure).ok());
  const auto next = put();
  EXPECT_EQ(next->sequence, closure->sequence + 10);
  take(2);
  EXPECT_FALSE(finish(closure));
  EXPECT_EQ(queue_.watermark(), next->sequence);
}

}  // namespace
}  // namespace trireme::internal
