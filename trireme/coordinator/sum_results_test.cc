// Tests of closures whose result is the sum of the results of their runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/variable.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kSummands = 1000;
constexpr int64_t kSumOfNumbers = kSummands * (kSummands - 1) / 2;
constexpr auto kSumsLimit = seconds(60);

class SumResults : public testing::Test {
 protected:
  using Tensors = std::vector<Tensor>;
  // A closure's sum of the numbers that it drew, and the number of its runs.
  struct Sums {
    int64_t numbers = 0;
    double runs = 0;
    bool has_value = true;

    bool operator==(const Sums&) const = default;
  };

  RemoteValue<Tensors> schedule(const PerWorkerDataset& data, int repeat) {
    return coordinator_.schedule({.repeat = repeat, .sum_results = true}, add_, data.iterator());
  }
  static Sums sums_of(const RemoteValue<Tensors>& value) {
    const Tensors sums = ClusterCoordinator::fetch(value);
    if (!value.has_value()) return {.has_value = !sums.empty()};
    return {sums.at(0).item<int64_t>(), sums.at(1).item<double>()};
  }
  // Schedules closures and returns their sums.
  std::vector<Sums> run(const PerWorkerDataset& data, int closures, int repeat) {
    std::vector<RemoteValue<Tensors>> values;
    for (int i = 0; i < closures; ++i) values.push_back(schedule(data, repeat));
    coordinator_.join(kSumsLimit);
    std::vector<Sums> all;
    for (const auto& value : values) all.push_back(sums_of(value));
    return all;
  }
  static Sums total_of(const std::vector<Sums>& all) {
    Sums total;
    for (const Sums& sums : all) {
      total.numbers += sums.numbers;
      total.runs += sums.runs;
    }
    return total;
  }
  int64_t total() const { return total_->read().item<int64_t>(); }

  InProcessTestCluster cluster_{{.workers = 3, .ps = 2}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec())};
  ParameterServers::Scope scope_ = strategy_.scope();
  std::optional<Variable> total_{std::in_place, "total", torch::zeros({}, torch::kInt64)};
  const Function<Tensors(Iterator&)> add_ =
      function("add", std::function<Tensors(Iterator&)>([this](Iterator& data) -> Tensors {
                 const auto element = data.next_optional();
                 if (!element) return {};
                 const Tensor sum = (*element)[0].sum();
                 total_->assign_add(sum);
                 return {sum, torch::ones({}, torch::kDouble)};
               }));
  ClusterCoordinator coordinator_{strategy_};
};

// Steps that return how many steps have run before them. With one worker, the sum over all steps
// shows whether one of them computed its result a second time, on variables that had changed.
class SumsOfOneWorker : public SumResults {
 protected:
  SumsOfOneWorker() { coordinator_.update_workers(cluster_.spec_with_workers({0})); }

  // Returns the sum of the numbers of steps that `steps` steps find.
  static int64_t expected(int64_t steps) { return steps * (steps - 1) / 2; }

  std::function<void(const Tensor& element)> on_capture_;  // May be null.
  const Function<Tensors(Iterator&)> count_ =
      function("count", std::function<Tensors(Iterator&)>([this](Iterator& data) -> Tensors {
                 const auto element = data.next_optional();
                 if (!element) return {};
                 if (on_capture_) on_capture_((*element)[0]);
                 const Tensor before = total_->read() + 0;
                 total_->assign_add(torch::ones({}, torch::kInt64));
                 return {before, (*element)[0].sum()};
               }));
};

TEST_F(SumResults, AddsTheResultsOfAllRuns) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(1, 101));
  EXPECT_EQ(sums_of(schedule(data, 50)), (Sums{50 * 51 / 2, 50}));
  EXPECT_EQ(sums_of(schedule(data, 1)), (Sums{51, 1}));
  const auto last = coordinator_.schedule({.repeat = 9}, add_, data.iterator());
  EXPECT_EQ(sums_of(last), (Sums{60, 1})) << "by default the result is that of the last run";
  EXPECT_EQ(total(), 60 * 61 / 2);
}

TEST_F(SumResults, IsThatOfTheCompletedRunsAtTheEndOfAWorkersDataset) {
  coordinator_.update_workers(cluster_.spec_with_workers({1}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(25));
  EXPECT_EQ(run(data, 4, 10), (std::vector<Sums>{{45, 10}, {145, 10}, {110, 5}, {0, 0, false}}));
  EXPECT_EQ(total(), 24 * 25 / 2);
}

TEST_F(SumResults, IsThatOfTheCompletedRunsAtTheEndOfASharedDataset) {
  const auto few =
      coordinator_.create_per_worker_dataset(Dataset::range(7), {.shard = Shard::kDynamic});
  EXPECT_EQ(sums_of(schedule(few, 100)), (Sums{21, 7}));
  EXPECT_EQ(sums_of(schedule(few, 100)), (Sums{0, 0, false}));
  // Ranges end in the middle of closures, and so do the epochs, with smaller batches.
  const auto many = coordinator_.create_per_worker_dataset(
      Dataset::range(kSummands).shuffle(64).batch(7), {.shard = Shard::kDynamic, .epochs = 3});
  const std::vector<Sums> all = run(many, 60, 10);
  EXPECT_EQ(total_of(all), (Sums{3 * kSumOfNumbers, 3 * (3 * 37 + 32)}));
  EXPECT_EQ(total(), 21 + 3 * kSumOfNumbers);
}

TEST_F(SumResults, TheEndIsStillAnErrorOfFunctionsThatDoNotAcceptIt) {
  const auto take = function("take", [](Iterator& data) { return data.next(); });
  for (const Shard shard : {Shard::kOff, Shard::kDynamic}) {
    const auto data = coordinator_.create_per_worker_dataset(Dataset::range(5), {.shard = shard});
    coordinator_.schedule({.repeat = 9, .sum_results = true}, take, data.iterator());
    EXPECT_EQ(error_of([&] { coordinator_.join(kSumsLimit); }).code(), ErrorCode::kEndOfData);
  }
}

TEST_F(SumResults, ResultsOfOtherShapesAreAnErrorThatNamesTheFunction) {
  const auto rows = function("rows", [](Iterator& data) { return data.next() + 1; });
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(10).batch(4));
  coordinator_.schedule({.repeat = 3, .sum_results = true}, rows, data.iterator());
  const Error error = error_of([&] { coordinator_.join(kSumsLimit); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("function 'rows': result 0 is Long [2] in run 3 and Long [4] "
                                      "before; results can be added up only if all runs return"));
}

TEST_F(SumResults, ElementsOfALostWorkerAreAddedOnce) {
  constexpr int kEpochs = 20;
  const auto data = coordinator_.create_per_worker_dataset(
      Dataset::range(kSummands).batch(7), {.shard = Shard::kDynamic, .epochs = kEpochs});
  std::vector<RemoteValue<Tensors>> values;
  for (int i = 0; i < 400; ++i) {
    values.push_back(schedule(data, 10));
    if (i == 60) coordinator_.fetch(values[0]);  // The workers are busy from here on.
    if (i == 100) cluster_.kill({"worker", 0});
    if (i == 200) cluster_.start({"worker", 0});
  }
  coordinator_.join(kSumsLimit);
  std::vector<Sums> all;
  for (const auto& value : values) all.push_back(sums_of(value));
  EXPECT_EQ(total_of(all), (Sums{kEpochs * kSumOfNumbers, kEpochs * (3 * 37 + 32)}));
  EXPECT_EQ(total(), kEpochs * kSumOfNumbers);
}

TEST_F(SumsOfOneWorker, ContinuesAfterElementsOfAnotherShape) {
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(10).batch(4));
  const Tensors sums = ClusterCoordinator::fetch(
      coordinator_.schedule({.repeat = 3, .sum_results = true}, count_, data.iterator()));
  EXPECT_EQ(sums.at(0).item<int64_t>(), expected(3)) << "the last batch is smaller";
  EXPECT_EQ(sums.at(1).item<int64_t>(), 45);
  EXPECT_EQ(total(), 3);
}

// How many elements a filter leaves of a range is seen only where the range ends.
TEST_F(SumsOfOneWorker, ContinuesAfterRangesThatEnd) {
  constexpr int64_t kLeft = kSummands / 2;
  const auto data = coordinator_.create_per_worker_dataset(
      Dataset::range(kSummands).filter([](const Tensor& x) { return x.remainder(2) == 0; }),
      {.shard = Shard::kDynamic});
  std::vector<RemoteValue<Tensors>> values;
  for (int i = 0; i < 60; ++i) {
    values.push_back(
        coordinator_.schedule({.repeat = 10, .sum_results = true}, count_, data.iterator()));
  }
  coordinator_.join(kSumsLimit);
  int64_t before = 0, numbers = 0;
  for (const auto& value : values) {
    if (!value.has_value()) continue;
    const Tensors sums = ClusterCoordinator::fetch(value);
    before += sums.at(0).item<int64_t>();
    numbers += sums.at(1).item<int64_t>();
  }
  EXPECT_EQ(before, expected(kLeft));
  EXPECT_EQ(numbers, 2 * expected(kLeft));
  EXPECT_EQ(total(), kLeft);
}

// The worker is lost while the function is captured for the last batch. Its successor continues
// with the sums that the coordinator has.
TEST_F(SumsOfOneWorker, ContinuesOnAnotherWorker) {
  bool lost = false;
  on_capture_ = [&](const Tensor& element) {
    if (lost || element.size(0) != 2) return;
    lost = true;
    cluster_.kill({"worker", 0});
    cluster_.start({"worker", 0});
  };
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(10).batch(4));
  const Tensors sums = ClusterCoordinator::fetch(
      coordinator_.schedule({.repeat = 3, .sum_results = true}, count_, data.iterator()));
  EXPECT_TRUE(lost);
  EXPECT_EQ(sums.at(0).item<int64_t>(), expected(3));
  EXPECT_EQ(sums.at(1).item<int64_t>(), 45);
  EXPECT_EQ(total(), 3);
}

std::atomic<int> calls_of_one = 0;
std::atomic<bool> one_may_end = false;
// The second call does not end before the test lets it.
const auto kOne = native_function("one", [] {
  if (++calls_of_one == 2) wait_until([] { return one_may_end.load(); }, seconds(20));
  return torch::ones({});
});

TEST_F(SumResults, AClosureThatRunsAgainElsewhereBeginsFromZero) {
  calls_of_one = 0;
  one_may_end = false;
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto sum = coordinator_.schedule({.repeat = 3, .sum_results = true}, kOne);
  ASSERT_TRUE(wait_until([] { return calls_of_one == 2; }, seconds(20)));
  coordinator_.update_workers(cluster_.spec_with_workers({1}));
  EXPECT_EQ(coordinator_.fetch(sum).item<float>(), 3);
  EXPECT_EQ(calls_of_one, 5) << "one run was completed before, and one was under way";
  one_may_end = true;
}

}  // namespace
}  // namespace trireme
