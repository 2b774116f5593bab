#include <gtest/gtest.h>

#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/manual_clock.h"

namespace trireme {
namespace {

// ProcessCluster needs the trireme binary and is tested in tests/integration.

TEST(ManualClock, MovesOnlyWhenAdvanced) {
  ManualClock clock;
  const Time before = clock.now();
  EXPECT_EQ(clock.now(), before);
  clock.advance(std::chrono::hours(3));
  EXPECT_EQ(clock.now() - before, std::chrono::hours(3));
}

TEST(InProcessTestCluster, KillsAndRestartsOneTask) {
  InProcessTestCluster cluster({.workers = 2, .ps = 1});
  cluster.wait_until_up();
  const TaskId task = {"worker", 1};
  const uint64_t before = cluster.describe(task).incarnation;
  cluster.kill(task);
  EXPECT_FALSE(cluster.is_running(task));
  EXPECT_THROW(cluster.describe(task), Error);
  cluster.restart(task);
  EXPECT_NE(cluster.describe(task).incarnation, before);
}

TEST(InProcessTestCluster, CannotFreezeATask) {
  InProcessTestCluster cluster({.workers = 1, .ps = 0});
  EXPECT_FALSE(cluster.can_freeze());
  EXPECT_THROW(cluster.freeze({"worker", 0}), Error);
}

TEST(InProcessTestCluster, WaitUntilUpNamesTheMissingTask) {
  InProcessTestCluster cluster({.workers = 2, .ps = 0, .start = false});
  cluster.start({"worker", 0});
  try {
    cluster.wait_until_up(after(std::chrono::milliseconds(300)));
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/job:worker/task:1: "), std::string::npos)
        << error.what();
    EXPECT_EQ(std::string(error.what()).find("/job:worker/task:0"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme
