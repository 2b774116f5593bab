// Workers may join and leave while closures run. The coordinator backs off from a worker that is
// lost again and again and names it, and it flags a slow worker. The tests measure how soon, so
// nothing else may run beside them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <torch/types.h>

#include <atomic>
#include <thread>

#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/slowdown.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;

class WorkersComeAndGo : public testing::Test {
 protected:
  WorkerState state_of(int worker) const {
    for (const WorkerState& state : coordinator_->workers()) {
      if (state.task.index == worker) return state;
    }
    return {};
  }

  void start(ProcessCluster& cluster, const std::vector<int>& workers) {
    strategy_.emplace(Cluster(cluster.spec_with_workers(workers)));
    const auto scope = strategy_->scope();
    count_.emplace("count", torch::zeros({}, torch::kInt64));
    coordinator_ = std::make_unique<ClusterCoordinator>(*strategy_);
  }

  const Function<Tensor(const Tensor&)> add_ =
      function("add", std::function<Tensor(const Tensor&)>([this](const Tensor& x) {
                 count_->assign_add(torch::ones({}, torch::kInt64));
                 return x.matmul(x).sum();
               }),
               {});
  std::optional<ParameterServerStrategy> strategy_;
  std::optional<Variable> count_;
  std::unique_ptr<ClusterCoordinator> coordinator_;
};

TEST_F(WorkersComeAndGo, AnAddedWorkerRunsClosuresWithinTwoSecondsOfBeingUp) {
  ProcessCluster cluster({{.workers = 2, .ps = 1, .start = false}});
  cluster.start({"ps", 0});
  cluster.start({"worker", 0});
  start(cluster, {0});
  const Tensor work = torch::ones({150, 150});
  int64_t scheduled = 0;
  const auto keep_busy = [&] {
    int64_t done = 0;
    for (const WorkerState& state : coordinator_->workers()) done += state.closures_done;
    for (; scheduled - done < 500; ++scheduled) coordinator_->schedule(add_, work);
  };
  keep_busy();
  coordinator_->update_workers(cluster.spec_with_workers({0, 1}));
  keep_busy();
  EXPECT_FALSE(state_of(1).up);
  cluster.start({"worker", 1});
  cluster.wait_until_up({"worker", 1});
  const Time limit = after(seconds(2));
  while (state_of(1).closures_done == 0 && Clock::real().now() < limit) {
    keep_busy();
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_GT(state_of(1).closures_done, 0u);
  // The first worker leaves, and no closure is lost or applied twice.
  coordinator_->update_workers(cluster.spec_with_workers({1}));
  coordinator_->join();
  EXPECT_EQ(count_->read().item<int64_t>(), scheduled);
}

TEST_F(WorkersComeAndGo, BacksOffFromAWorkerThatIsLostWithEveryClosureAndNamesIt) {
  ProcessCluster cluster({{.workers = 1, .ps = 1}});
  start(cluster, {0});
  const auto long_one = function("long_one", [](const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 200; ++i) y = y.matmul(x) / 400;
    return y;
  });
  const Tensor work = torch::ones({400, 400});
  long_one.graph(work);
  testing::internal::CaptureStderr();
  const RemoteValue value = coordinator_->schedule(long_one, work);
  const Time limit = after(seconds(60));
  for (int i = 0; i < 4; ++i) {
    while (state_of(0).closures_there == 0 && Clock::real().now() < limit) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    cluster.kill({"worker", 0});
    cluster.start({"worker", 0});
    while (state_of(0).losses <= static_cast<uint64_t>(i) && Clock::real().now() < limit) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  EXPECT_EQ(coordinator_->fetch(value).sizes(), work.sizes());
  const std::string log = testing::internal::GetCapturedStderr();
  for (const char* wait : {"backs off for 1 s", "backs off for 2 s"}) {
    EXPECT_THAT(log, HasSubstr(wait));
  }
  EXPECT_THAT(log, HasSubstr("/job:worker/task:0 was lost 3 times without having run a closure of "
                             "function 'long_one'"));
}

// Lets a process run for a twentieth of the time. Each pause is 19 times the measured running time,
// so the ratio holds even when this thread is woken late. It must not be woken so late that a whole
// closure fits between two pauses, since that closure would take its usual time. So it runs at a
// real-time priority if the test may set one.
class Throttle {
 public:
  explicit Throttle(pid_t pid) : pid_(pid), thread_([this] { run(); }) {}
  ~Throttle() {
    stop_ = true;
    thread_.join();
    kill(pid_, SIGCONT);
  }

 private:
  void run() {
    const sched_param priority = {.sched_priority = 1};
    sched_setscheduler(0, SCHED_FIFO, &priority);
    while (!stop_) {
      kill(pid_, SIGCONT);
      const Time began = Clock::real().now();
      std::this_thread::sleep_for(milliseconds(5));
      kill(pid_, SIGSTOP);
      std::this_thread::sleep_for(19 * (Clock::real().now() - began));
    }
  }

  const pid_t pid_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST_F(WorkersComeAndGo, FlagsAWorkerAtFivePercentOfACoreWithinThreeSteps) {
  ProcessCluster cluster({{.workers = 2, .ps = 1}});
  start(cluster, {0, 1});
  const Tensor work = torch::ones({1400, 1400});  // some 80 ms
  for (int i = 0; i < 20; ++i) coordinator_->schedule(add_, work);
  coordinator_->join();
  EXPECT_FALSE(state_of(1).slow);
  const uint64_t before = state_of(1).closures_done;
  const Throttle throttle(cluster.pid({"worker", 1}));
  const Time limit = after(seconds(60));
  while (!state_of(1).slow && Clock::real().now() < limit) {
    for (int i = 0; i < 4; ++i) coordinator_->schedule(add_, work);
    coordinator_->join();
  }
  EXPECT_TRUE(state_of(1).slow);
  EXPECT_FALSE(state_of(0).slow);
  // One more than three: a closure that was in flight before the throttle ran at full speed. Beside
  // other load the times of both workers vary, and the comparison needs more of them.
  const double load = slowdown();
  EXPECT_LE(static_cast<double>(state_of(1).closures_done - before), (3 + 1) * load * load);
}

}  // namespace
}  // namespace trireme
