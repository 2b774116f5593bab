#include "trireme/ps/lease_clock.h"

#include <gtest/gtest.h>

#include "trireme/testing/manual_clock.h"

namespace trireme {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kLease = seconds(3);

class LeaseClockTest : public testing::Test {
 protected:
  // Time on the server's clock, which has another epoch.
  Time server_now() const { return client_.now() + offset_; }
  // Lets the server answer now; the answer arrives after `delay`.
  void answer(Duration delay = {}) {
    const int64_t clock = to_clock_milliseconds(server_now());
    client_.advance(delay);
    leases_.note_answer(client_.now(), clock);
  }
  // Requests a lease and returns its end on the server's clock.
  Time request() { return from_clock_milliseconds(leases_.request(client_.now(), kLease)); }

  ManualClock client_;
  Duration offset_ = hours(7) - std::chrono::microseconds(123456);
  LeaseClock leases_;
};

TEST_F(LeaseClockTest, AsksForALeaseOnTheServersClock) {
  EXPECT_FALSE(leases_.known());
  answer();
  EXPECT_TRUE(leases_.known());
  client_.advance(seconds(100));
  const Time end = request();
  EXPECT_LE(end, server_now() + kLease);
  EXPECT_GE(end, server_now() + kLease - milliseconds(2));
  EXPECT_EQ(leases_.run_out(), client_.now() + kLease);
}

// A server that is frozen executes requests when it is thawed. The lease must be over by then.
TEST_F(LeaseClockTest, ARequestThatIsExecutedLateAsksForALeaseThatIsOver) {
  answer(milliseconds(500));  // a slow answer makes the lease shorter, never longer
  const Time end = request();
  client_.advance(leases_.run_out() - client_.now());
  EXPECT_LE(end, server_now());
}

TEST_F(LeaseClockTest, EstimatesTheServersClockFromBelow) {
  answer(milliseconds(5));
  for (int i = 0; i < 1000; ++i) {
    client_.advance(std::chrono::microseconds(777));
    const Time estimate = from_clock_milliseconds(leases_.at(client_.now()));
    EXPECT_LE(estimate, server_now());
    EXPECT_GE(estimate, server_now() - milliseconds(5 + 3));
  }
}

TEST_F(LeaseClockTest, AllRequestsCountForTheEnd) {
  answer();
  const Time first = client_.now();
  request();
  EXPECT_EQ(leases_.run_out(), first + kLease);
  client_.advance(seconds(1));
  request();
  EXPECT_EQ(leases_.run_out(), first + seconds(1) + kLease);
}

TEST_F(LeaseClockTest, FollowsTheDriftOfTheServersClock) {
  answer();
  client_.advance(hours(24));
  offset_ -= seconds(8);  // the server's clock is 100 ppm slower
  answer();
  EXPECT_LE(request(), server_now() + kLease);
}

}  // namespace
}  // namespace trireme
