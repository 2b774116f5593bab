// A job goes on while one of its workers cannot reach one of the servers, and after all of them
// could not reach a server for a while. Calls that wait for an answer fail after ten seconds only,
// and those without a route at once. TRIREME_FULL=1 also cuts each direction of a connection alone.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/fault/network_cuts.h"
#include "tests/fault/network_job.h"
#include "trireme/testing/slowdown.h"

namespace trireme {
namespace {

using std::chrono::seconds;

class Partitions : public NetworkJob, public testing::WithParamInterface<NetworkCut> {
 protected:
  void cut(const std::string& one, const std::string& other) {
    GetParam().apply(*network_, one, other);
  }
};

INSTANTIATE_TEST_SUITE_P(Cuts, Partitions, testing::ValuesIn(network_cuts()), name_of_cut);
INSTANTIATE_TEST_SUITE_P(Routes, Partitions, testing::Values(kNoRoute), name_of_cut);

// The worker takes closures and fails with them. They run on the other worker, and the job does not
// end, however often that happens.
TEST_P(Partitions, AWorkerWithoutARouteToOneServerLeavesItsClosuresToOthers) {
  start_coordinator({&add_});
  const uint64_t elsewhere = state_of(1).closures_done;
  cut(host(worker(0)), host(ps(1)));
  schedule(500);
  EXPECT_TRUE(done_within(seconds(60)));
  EXPECT_GT(state_of(1).closures_done, elsewhere);
  expect_counts({0, 0}, scheduled_);
  // The coordinator backs off from the worker, and further closures are done without it.
  schedule(500);
  EXPECT_TRUE(done_within(seconds(60)));
  network_->heal();
  wait_until_used(0, add_);
  EXPECT_TRUE(done_within(seconds(60)));
  expect_counts({0, 0}, scheduled_);
}

// A parameter server is lost only after a silence of 15 s. The closures are done within 10 s of the
// end of the partition.
TEST_P(Partitions, AServerThatIsCutOffForEightSecondsIsNotLost) {
  start_coordinator({&add_});
  const auto limit = std::chrono::duration_cast<Duration>(seconds(10) * slowdown());
  schedule(2000);
  for (const std::string& other : {network_->test_host(), host(worker(0)), host(worker(1))}) {
    cut(other, host(ps(1)));
  }
  // The closures before it may be done by now. This one cannot be done while the server is cut off.
  schedule(1);
  EXPECT_FALSE(done_within(seconds(8)));  // nor is an error raised
  network_->heal();
  EXPECT_TRUE(done_within(limit));
  expect_counts({0, 0}, scheduled_);
}

}  // namespace
}  // namespace trireme
