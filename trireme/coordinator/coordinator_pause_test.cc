// Tests of pauses with workers and parameter servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <future>
#include <set>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/variable.h"
#include "trireme/ps/parameter_server_backend.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using internal::BackendPause;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;

constexpr auto kCutLimit = seconds(60);

class CoordinatorPauses : public testing::Test {
 protected:
  CoordinatorPauses() {
    backend_ = internal::Access<ParameterServers>::backend(strategy_.servers());
  }

  std::unique_ptr<BackendPause> pause(Time drain_until = after(kCutLimit)) {
    return value_or_throw(backend_->pause(drain_until, after(kCutLimit)));
  }
  int64_t total() const { return total_.read().item<int64_t>(); }
  // Blocks until a worker has closures.
  void await_closures() {
    const auto in_flight = [&] {
      for (const WorkerState& worker : coordinator_.workers()) {
        if (worker.closures_there > 0) return true;
      }
      return false;
    };
    for (const Time end = after(kCutLimit); !in_flight() && Clock::real().now() < end;) {
      std::this_thread::yield();
    }
  }
  // Returns a function that adds to the total, after it has kept a worker busy for some time.
  Function<void(const Tensor&)> slow_add() {
    return function("slow_add", std::function<void(const Tensor&)>([this](const Tensor& x) {
                      total_.assign_add(delayed(torch::ones({}, torch::kInt64), x));
                    }));
  }
  static Tensor delayed(const Tensor& number, const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 100; ++i) y = torch::tanh(y);
    return number + (y.sum() * 0).to(torch::kInt64);
  }

  InProcessTestCluster cluster_{{.workers = 2, .ps = 2}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec())};
  std::shared_ptr<internal::ParameterServerBackend> backend_;
  ParameterServers::Scope scope_ = strategy_.scope();
  const Variable total_{"total", torch::zeros({}, torch::kInt64)};
  ClusterCoordinator coordinator_{strategy_};
};

TEST_F(CoordinatorPauses, NothingChangesDuringAPauseAndAllClosuresRun) {
  constexpr int kClosures = 600;
  const auto add = function("add", [&] { total_.assign_add(torch::ones({}, torch::kInt64)); });
  std::vector<RemoteValue<void>> values;
  for (int i = 0; i < kClosures; ++i) {
    values.push_back(coordinator_.schedule(add));
    if (i % 200 != 100) continue;
    const auto held = pause();
    const auto ready = [&] {
      return std::ranges::count_if(values, [](const auto& value) { return value.ready(); });
    };
    const int64_t before = total();
    EXPECT_EQ(before, ready()) << "each closure is done, or was not begun";
    values.push_back(coordinator_.schedule(add));
    EXPECT_EQ(total(), before);
    EXPECT_FALSE(values.back().ready());
    ASSERT_EQ(held->fences().size(), 2u) << "the program and its coordinator";
    EXPECT_LE(held->fences()[1].below, static_cast<uint64_t>(before) + 1);
  }
  coordinator_.join();
  EXPECT_EQ(total(), static_cast<int64_t>(values.size()));
}

TEST_F(CoordinatorPauses, AClosureThatIsCancelledPutsItsElementsBack) {
  constexpr int kClosures = 12;
  const auto data = coordinator_.create_per_worker_dataset([](const InputContext& context) {
    const int64_t first = 1000 * (context.input_pipeline_id + 1);
    return Dataset::range(first, first + 1000);
  });
  const Tensor large = torch::ones({1 << 18});
  const auto slow = function("slow", std::function<Tensor(Iterator&)>([&](Iterator& numbers) {
                               const Tensor number = delayed(numbers.next().sum(), large);
                               total_.assign_add(number);
                               return number;
                             }));
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < kClosures; ++i)
    values.push_back(coordinator_.schedule(slow, data.iterator()));
  await_closures();
  {
    const auto held = pause(Clock::real().now());
    int64_t sum = 0, done = 0;
    for (const auto& value : values) {
      if (!value.ready()) continue;
      ++done;
      sum += coordinator_.fetch(value).item<int64_t>();
    }
    EXPECT_LT(done, kClosures) << "the test must pause while closures run";
    EXPECT_EQ(total(), sum);
    for (const WorkerState& worker : coordinator_.workers()) EXPECT_EQ(worker.closures_there, 0u);
  }
  coordinator_.join();
  std::vector<std::set<int64_t>> drawn(2);
  int64_t sum = 0;
  for (const Tensor& value : coordinator_.fetch(values)) {
    const int64_t number = value.item<int64_t>();
    EXPECT_TRUE(drawn.at(number / 1000 - 1).insert(number % 1000).second) << number;
    sum += number;
  }
  EXPECT_EQ(total(), sum);
  for (const auto& numbers : drawn) {
    if (numbers.empty()) continue;
    EXPECT_EQ(*numbers.rbegin() + 1, static_cast<int64_t>(numbers.size())) << "none was skipped";
  }
}

TEST_F(CoordinatorPauses, AClosureThatRepeatsRunsToItsEndOnceItHasPushed) {
  constexpr int kRepeat = 20;
  const Tensor numbers = torch::ones({1 << 14});
  const auto slow = slow_add();
  for (int i = 0; i < 10; ++i) coordinator_.schedule({.repeat = kRepeat}, slow, numbers);
  const Time end = after(kCutLimit);
  while (total() % kRepeat == 0 && Clock::real().now() < end) std::this_thread::yield();
  {
    const auto held = pause(Clock::real().now());
    EXPECT_GT(total(), 0);
    EXPECT_EQ(total() % kRepeat, 0);
  }
  coordinator_.join();
  EXPECT_EQ(total(), 10 * kRepeat);
}

TEST_F(CoordinatorPauses, TheClosuresOfALostWorkerRunToTheirEndFirst) {
  constexpr int kClosures = 60;
  const Tensor numbers = torch::ones({1 << 14});
  const auto slow = slow_add();
  std::vector<RemoteValue<void>> values;
  for (int i = 0; i < kClosures; ++i) values.push_back(coordinator_.schedule(slow, numbers));
  await_closures();
  auto paused = std::async(std::launch::async, [&] { return pause(Clock::real().now()); });
  cluster_.kill({"worker", 0});
  {
    const auto held = paused.get();
    int64_t done = 0;
    for (const auto& value : values) done += value.ready() ? 1 : 0;
    EXPECT_EQ(total(), done);
  }
  coordinator_.join();
  EXPECT_EQ(total(), kClosures);
}

TEST_F(CoordinatorPauses, StepsOfTheProgramItselfWait) {
  auto held = pause();
  auto step = std::async(std::launch::async, [&] { total_.assign_add(torch::tensor(int64_t{5})); });
  EXPECT_EQ(step.wait_for(milliseconds(50)), std::future_status::timeout);
  EXPECT_EQ(total(), 0);
  EXPECT_EQ(error_code(backend_->pause(Time(), after(milliseconds(20))).status()),
            ErrorCode::kDeadlineExceeded);
  held.reset();
  step.get();
  EXPECT_EQ(total(), 5);
}

TEST_F(CoordinatorPauses, APauseReturnsTheErrorOfAClosureWhichIsRaisedAsUsual) {
  const auto find = function("find", std::function<Tensor(const Tensor&)>([](const Tensor& ids) {
                               return torch::arange(10).index_select(0, ids);
                             }),
                             {.check_capture = false});
  coordinator_.schedule(find, torch::tensor({1}));  // Captures the function.
  coordinator_.join();
  coordinator_.schedule(find, torch::tensor({70}));
  const Time end = after(kCutLimit);
  absl::Status status;
  while (status.ok() && Clock::real().now() < end) {
    status = backend_->pause(after(kCutLimit), after(kCutLimit)).status();
  }
  EXPECT_THAT(describe(status), HasSubstr("function 'find'"));
  EXPECT_THAT(error_of([&] { coordinator_.join(); }).what(), HasSubstr("function 'find'"));
  EXPECT_TRUE(backend_->pause(after(kCutLimit), after(kCutLimit)).ok());
}

}  // namespace
}  // namespace trireme
