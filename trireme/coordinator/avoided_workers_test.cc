#include "trireme/coordinator/avoided_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/route_backoff.h"

namespace trireme::internal {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

const Time kStart = Time() + seconds(100);

TEST(AvoidedWorkers, ContainsAWorkerUntilItsTime) {
  AvoidedWorkers avoided;
  EXPECT_TRUE(avoided.empty());
  avoided.add(2, kStart + seconds(5));
  EXPECT_TRUE(avoided.contains(2, kStart));
  EXPECT_FALSE(avoided.contains(1, kStart));
  EXPECT_FALSE(avoided.contains(2, kStart + seconds(5)));
  avoided.add(2, kStart + seconds(9));
  EXPECT_TRUE(avoided.contains(2, kStart + seconds(5)));
}

TEST(ConnectedWorkers, AnAvoidedWorkerMayRunAClosureOnlyIfAllOthersAreAvoidedToo) {
  ConnectedWorkers workers;
  workers.add(0);
  workers.add(1);
  AvoidedWorkers avoided;
  EXPECT_TRUE(workers.may_run(avoided, 0, kStart));
  avoided.add(0, kStart + seconds(5));
  EXPECT_FALSE(workers.may_run(avoided, 0, kStart));
  EXPECT_TRUE(workers.may_run(avoided, 1, kStart));
  EXPECT_TRUE(workers.may_run(avoided, 0, kStart + seconds(5))) << "the time is over";
  avoided.add(1, kStart + seconds(5));
  EXPECT_TRUE(workers.may_run(avoided, 0, kStart)) << "it has failed everywhere";
  avoided = AvoidedWorkers();
  avoided.add(0, kStart + seconds(5));
  workers.remove(1);
  EXPECT_TRUE(workers.may_run(avoided, 0, kStart)) << "there is no other worker";
}

TEST(RouteBackoff, DoublesWithEachTrialThatFails) {
  RouteBackoff backoff;
  EXPECT_FALSE(backoff.on_trial());
  Time now = kStart;
  Duration expected = RouteBackoff::kFirst;
  for (int trial = 0; trial < 20; ++trial) {
    const std::optional<Time> end = backoff.note_failure(now);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(*end - now, expected) << "trial " << trial;
    EXPECT_TRUE(backoff.backs_off(now));
    EXPECT_EQ(backoff.note_failure(now), std::nullopt) << "sent before the back-off";
    now = *end;
    EXPECT_FALSE(backoff.backs_off(now));
    EXPECT_TRUE(backoff.on_trial());
    expected = std::min(expected * 2, RouteBackoff::kLongest);
  }
  backoff.reset();
  EXPECT_FALSE(backoff.on_trial());
  EXPECT_EQ(backoff.note_failure(now), now + RouteBackoff::kFirst);
}

// Waits for closures on behalf of one worker, and takes none when it is notified.
class WaitingTaker final : public ClosureTaker {
 public:
  explicit WaitingTaker(int worker) : worker_(worker) {}
  bool on_closures() override {
    ++notified;
    return false;
  }
  int worker() const override { return worker_; }
  bool is_idle() const override { return true; }

  std::atomic<int> notified = 0;

 private:
  const int worker_;
};

class QueueOfTwoWorkers : public testing::Test {
 protected:
  QueueOfTwoWorkers() {
    for (int worker : {0, 1}) queue_->add_worker(worker);
  }
  ClosurePtr put() {
    auto closure = std::make_shared<Closure>();
    closure->function = closure->current = function_;
    EXPECT_TRUE(queue_->put(closure).ok());
    return closure;
  }
  std::vector<ClosurePtr> take(int worker) { return queue_->take(takers_[worker], minutes(1)); }

  const std::shared_ptr<ClosureFunction> function_ = std::make_shared<ClosureFunction>();
  const std::shared_ptr<ClosureQueue> queue_ = std::make_shared<ClosureQueue>(100);
  const std::vector<std::shared_ptr<WaitingTaker>> takers_ = {std::make_shared<WaitingTaker>(0),
                                                              std::make_shared<WaitingTaker>(1)};
};

TEST_F(QueueOfTwoWorkers, AClosureThatFailedOnAWorkerGoesToTheOther) {
  const auto a = put(), b = put(), c = put();
  ASSERT_EQ(take(0), (std::vector{a, b, c}));
  queue_->put_back_elsewhere({a}, 0, after(minutes(1)));
  queue_->put_back({b});
  queue_->put_back_elsewhere({c}, 0, after(minutes(1)));
  // Before the failure was remembered, the idle worker got the same closure again at once.
  EXPECT_EQ(take(0), std::vector{b});
  EXPECT_EQ(take(1), (std::vector{a, c}));
}

TEST_F(QueueOfTwoWorkers, AClosureThatFailedEverywhereIsTriedAgain) {
  const auto a = put();
  for (int round = 0; round < 2; ++round) {
    for (int worker : {0, 1}) {
      ASSERT_EQ(take(worker), std::vector{a}) << "worker " << worker << " in round " << round;
      queue_->put_back_elsewhere({a}, worker, after(minutes(1)));
    }
  }
}

TEST_F(QueueOfTwoWorkers, TheTimeOfAnAvoidedWorkerEnds) {
  const auto a = put();
  ASSERT_EQ(take(0), std::vector{a});
  queue_->put_back_elsewhere({a}, 0, Time());
  EXPECT_EQ(take(0), std::vector{a});
}

TEST_F(QueueOfTwoWorkers, OnlyAWorkerThatMayRunTheClosureIsNotified) {
  const auto a = put();
  ASSERT_EQ(take(1), std::vector{a});
  for (int worker : {0, 1}) EXPECT_TRUE(take(worker).empty());  // Both wait from now on.
  queue_->put_back_elsewhere({a}, 0, after(minutes(1)));
  EXPECT_EQ(takers_[0]->notified, 0) << "it failed there";
  EXPECT_EQ(takers_[1]->notified, 1);
}

TEST_F(QueueOfTwoWorkers, AnAvoidedWorkerIsNotifiedOnceTheOthersAreLost) {
  const auto a = put();
  ASSERT_EQ(take(0), std::vector{a});
  queue_->put_back_elsewhere({a}, 0, after(minutes(1)));
  EXPECT_TRUE(take(0).empty());
  EXPECT_EQ(takers_[0]->notified, 0);
  queue_->remove_worker(1);
  EXPECT_EQ(takers_[0]->notified, 1);
  EXPECT_EQ(take(0), std::vector{a});
}

}  // namespace
}  // namespace trireme::internal
