#include "trireme/coordinator/burst_announcer.h"

#include <gtest/gtest.h>

namespace trireme::internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class BurstAnnouncerTest : public testing::Test {
 protected:
  // Puts a closure `gap` after the last one. Returns true if it should be announced now.
  bool put_after(Duration gap, Duration cost = {}) {
    return announcer_.note_put(now_ += gap, cost);
  }

  static constexpr size_t kClosures = 4;
  static constexpr Duration kTime = milliseconds(1);
  static constexpr Duration kInBurst = BurstAnnouncer::kBurstGap - microseconds(1);

  Time now_ = Time(seconds(1000));
  BurstAnnouncer announcer_{kClosures, kTime};
};

TEST_F(BurstAnnouncerTest, AnnouncesASingleClosureAtOnce) {
  EXPECT_FALSE(announcer_.has_unannounced());
  EXPECT_TRUE(put_after({}));
  EXPECT_TRUE(announcer_.has_unannounced());
  announcer_.note_announced();
  EXPECT_FALSE(announcer_.has_unannounced());
  EXPECT_TRUE(put_after(BurstAnnouncer::kBurstGap));
}

TEST_F(BurstAnnouncerTest, AnnouncesABurstWhenItHasEnoughClosuresForABatch) {
  EXPECT_TRUE(put_after({}));
  for (int batch = 0; batch < 3; ++batch) {
    announcer_.note_announced();
    for (size_t i = 1; i < kClosures; ++i) EXPECT_FALSE(put_after(kInBurst));
    EXPECT_TRUE(announcer_.has_unannounced());
    EXPECT_TRUE(put_after(kInBurst));
  }
}

TEST_F(BurstAnnouncerTest, AnnouncesABurstWhenItLastsAsLongAsABatch) {
  EXPECT_TRUE(put_after({}));
  for (int batch = 0; batch < 3; ++batch) {
    announcer_.note_announced();
    EXPECT_FALSE(put_after(kInBurst, kTime / 2));
    EXPECT_TRUE(put_after(kInBurst, kTime / 2));
  }
  announcer_.note_announced();
  EXPECT_TRUE(put_after(kInBurst, kTime));
}

TEST_F(BurstAnnouncerTest, AnnouncesTheRestOfABurstAfterAPause) {
  put_after({});
  announcer_.note_announced();
  EXPECT_FALSE(put_after(kInBurst));
  EXPECT_TRUE(put_after(BurstAnnouncer::kBurstGap));
  // This closure is part of a burst, whether or not the one before it has been announced.
  EXPECT_FALSE(put_after(kInBurst));
}

TEST_F(BurstAnnouncerTest, KeepsAskingForAnAnnouncementUntilItIsMade) {
  for (size_t i = 0; i < kClosures; ++i) put_after(kInBurst);
  EXPECT_TRUE(put_after(kInBurst));
  announcer_.note_announced();
  EXPECT_FALSE(put_after(kInBurst));
}

TEST_F(BurstAnnouncerTest, SchedulesOneDelayedAnnouncementAtATime) {
  EXPECT_TRUE(announcer_.schedule_delayed());
  EXPECT_FALSE(announcer_.schedule_delayed());
  announcer_.note_announced();  // Announced early, but the timer still runs.
  EXPECT_FALSE(announcer_.schedule_delayed());
  announcer_.note_delay_over();
  EXPECT_TRUE(announcer_.schedule_delayed());
}

}  // namespace
}  // namespace trireme::internal
