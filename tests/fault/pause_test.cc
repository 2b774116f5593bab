// A pause of all updates of a program while tasks are frozen and killed. It holds only where every
// closure has applied all its updates or none, on all servers, and where nothing is applied later.
//
// Each closure adds 1 to a variable on every parameter server. So the counts are equal at a cut,
// and equal to the number of closures that are done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <future>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/ps/parameter_server_backend.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using internal::BackendPause;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;

constexpr auto kHoldLimit = seconds(60);

class Pauses : public testing::Test {
 protected:
  Pauses() {
    const auto scope = strategy_.scope();
    for (int i = 0; i < 2; ++i) {
      counts_.emplace_back(absl::StrCat("count", i), torch::zeros({}, torch::kInt64));
    }
    coordinator_ = std::make_unique<ClusterCoordinator>(strategy_);
  }

  void schedule(int closures) {
    for (int i = 0; i < closures; ++i) values_.push_back(coordinator_->schedule(add_, work_));
  }
  // Returns the number of closures that are done.
  int64_t done() const {
    int64_t done = 0;
    for (const auto& value : values_) done += value.ready() ? 1 : 0;
    return done;
  }
  std::vector<int64_t> read_counts() const {
    std::vector<int64_t> counts;
    for (const Variable& count : counts_) counts.push_back(count.read().item<int64_t>());
    return counts;
  }
  bool wait_for_progress() {
    const int64_t before = done();
    return wait_until([&] { return done() > before; }, kHoldLimit);
  }
  absl::StatusOr<std::unique_ptr<BackendPause>> pause(Duration drain, Duration limit = kHoldLimit) {
    return internal::Access<ParameterServers>::backend(strategy_.servers())
        ->pause(after(drain), after(limit));
  }

  ProcessCluster cluster_{{{.workers = 2, .ps = 2}}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec())};
  std::vector<Variable> counts_;
  std::unique_ptr<ClusterCoordinator> coordinator_;
  const Tensor work_ = torch::ones({1 << 14});
  const Function<void(const Tensor&)> add_ =
      function("add", std::function<void(const Tensor&)>([this](const Tensor& x) {
                 Tensor y = x;
                 for (int i = 0; i < 30; ++i) y = torch::tanh(y);
                 const Tensor one = 1 + (y.sum() * 0).to(torch::kInt64);
                 for (const Variable& count : counts_) count.assign_add(one);
               }));
  std::vector<RemoteValue<void>> values_;
};

TEST_F(Pauses, HoldAtACutWhileWorkersAreKilledAndFrozen) {
  for (int round = 0; round < 4; ++round) {
    const TaskId victim{"worker", round % 2};
    const bool freezes = round >= 2;
    schedule(600);
    ASSERT_TRUE(wait_for_progress());
    auto paused = std::async(std::launch::async, [&] { return pause(milliseconds(20)); });
    freezes ? cluster_.freeze(victim) : cluster_.kill(victim);
    const auto held = paused.get();
    ASSERT_TRUE(held.ok()) << held.status();
    const int64_t closures = done();
    EXPECT_EQ(read_counts(), (std::vector<int64_t>{closures, closures})) << "round " << round;
    freezes ? cluster_.thaw(victim) : cluster_.start(victim);
    // The worker that comes back must not complete anything.
    if (freezes) {
      wait_until([&] { return read_counts()[0] != closures; }, seconds(1));
    }
    EXPECT_EQ(read_counts(), (std::vector<int64_t>{closures, closures})) << "round " << round;
  }
  coordinator_->join(kHoldLimit);
  const int64_t all = static_cast<int64_t>(values_.size());
  EXPECT_EQ(read_counts(), (std::vector<int64_t>{all, all}));
}

TEST_F(Pauses, FailNamingAFrozenServerAndTheTrainingGoesOn) {
  const TaskId server{"ps", 1};
  for (const bool training : {false, true}) {
    schedule(training ? 600 : 1);
    if (training) {
      ASSERT_TRUE(wait_for_progress());
    } else {
      coordinator_->join(kHoldLimit);
    }
    cluster_.freeze(server);
    const Time begin = Clock::real().now();
    const absl::Status failed = pause(milliseconds(100), seconds(2)).status();
    EXPECT_EQ(error_code(failed), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(describe(failed), HasSubstr("/job:ps/task:1"));
    EXPECT_LT(Clock::real().now() - begin, seconds(10));
    cluster_.thaw(server);
    const auto held = pause(seconds(5));
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_EQ(read_counts()[0], done());
    EXPECT_EQ(read_counts()[1], done());
  }
  coordinator_->join(kHoldLimit);
  const int64_t all = static_cast<int64_t>(values_.size());
  EXPECT_EQ(read_counts(), (std::vector<int64_t>{all, all}));
}

}  // namespace
}  // namespace trireme
