// Tests of datasets that workers share (Shard::kDynamic), of the end of the data in closures, and
// of datasets that begin again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/coordinator/worker_resource.h"
#include "trireme/function/variable.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kNumbers = 1000;
constexpr auto kJoinLimit = seconds(60);

Tensor ones_at(const Tensor& numbers) {
  return torch::zeros({kNumbers}, torch::kInt64)
      .index_add(0, numbers.reshape({-1}), torch::ones({numbers.numel()}, torch::kInt64));
}

class DynamicShards : public testing::Test {
 protected:
  using Step = Function<Tensor(Iterator&)>;

  // Returns how often each number was drawn.
  std::vector<int64_t> counts() const {
    const Tensor counts = counts_->read();
    return {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + kNumbers};
  }
  int64_t total() const {
    const std::vector<int64_t> all = counts();
    return std::accumulate(all.begin(), all.end(), int64_t{0});
  }
  // Schedules closures, and returns how many of them had elements.
  int64_t run(const PerWorkerDataset& data, int closures, int repeat = 1) {
    std::vector<RemoteValue<>> values;
    for (int i = 0; i < closures; ++i) {
      values.push_back(
          coordinator_.schedule(ClosureOptions{.repeat = repeat}, count_, data.iterator()));
    }
    coordinator_.join(kJoinLimit);
    int64_t drawn = 0;
    for (const auto& value : values) {
      EXPECT_EQ(coordinator_.fetch(value).defined(), value.has_value());
      drawn += value.has_value() ? 1 : 0;
    }
    return drawn;
  }
  static const std::shared_ptr<internal::WorkerResource>& resource(const PerWorkerDataset& data) {
    return internal::Access<PerWorkerDataset>::resource(data);
  }

  InProcessTestCluster cluster_{{.workers = 3, .ps = 2}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec())};
  ParameterServers::Scope scope_ = strategy_.scope();
  std::optional<Variable> counts_{std::in_place, "counts", torch::zeros({kNumbers}, torch::kInt64)};
  const Step count_ = function("count", std::function<Tensor(Iterator&)>([this](Iterator& data) {
                                 const auto element = data.next_optional();
                                 if (!element) return Tensor();
                                 counts_->assign_add(ones_at((*element)[0]));
                                 return (*element)[0].sum();
                               }));
  const Step count_or_fail_ =
      function("count_or_fail", std::function<Tensor(Iterator&)>([this](Iterator& data) {
                 const Tensor numbers = data.next();
                 counts_->assign_add(ones_at(numbers));
                 return numbers.sum();
               }));
  ClusterCoordinator coordinator_{strategy_};
};

// A range has 37 batches, the last one 32.
constexpr int kBatches = 3 * 37 + 32;
Dataset batches() {
  return Dataset::range(kNumbers).shuffle(64).batch(7);
}

TEST_F(DynamicShards, EveryElementIsDrawnOnceInEachEpoch) {
  const auto data =
      coordinator_.create_per_worker_dataset(batches(), {.shard = Shard::kDynamic, .epochs = 2});
  EXPECT_EQ(run(data, 2 * kBatches + 20), 2 * kBatches);
  EXPECT_THAT(counts(), Each(2));
  EXPECT_EQ(run(data, 3), 0);
}

TEST_F(DynamicShards, TheEndOfTheDataIsRaisedWhenEverythingBeforeItIsDone) {
  const auto data = coordinator_.create_per_worker_dataset(batches(), {.shard = Shard::kDynamic});
  for (int i = 0; i < 3; ++i) {
    const Error error = error_of([&] {
      for (int j = 0; j < kBatches + 20; ++j) {
        coordinator_.schedule(count_or_fail_, data.iterator());
      }
      coordinator_.join(kJoinLimit);
    });
    EXPECT_EQ(error.code(), ErrorCode::kEndOfData);
    EXPECT_THAT(error.what(), HasSubstr("function 'count_or_fail': there are no more elements"));
    EXPECT_THAT(counts(), Each(1)) << i;
  }
}

TEST_F(DynamicShards, ClosuresThatRepeatDrawTheLastElementsToo) {
  const auto data =
      coordinator_.create_per_worker_dataset(batches(), {.shard = Shard::kDynamic, .epochs = 3});
  run(data, 3 * kBatches / 10 + 5, 10);
  EXPECT_THAT(counts(), Each(3));
}

TEST_F(DynamicShards, EndlessRepetitionHasNoEnd) {
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(10).batch(5),
                                                           {.shard = Shard::kDynamic, .epochs = 0});
  EXPECT_EQ(run(data, 500), 500);
  EXPECT_EQ(total(), 2500);
  // The workers may be in different epochs.
  for (int i = 0; i < 10; ++i) EXPECT_NEAR(counts()[i], 250, 3);
}

TEST_F(DynamicShards, TheRangesOfARemovedWorkerAreHandedOutAgain) {
  const auto data = coordinator_.create_per_worker_dataset(batches(), {.shard = Shard::kDynamic});
  for (int i = 0; i < kBatches + 5; ++i) {
    coordinator_.schedule(count_, data.iterator());
    if (i == 50) coordinator_.update_workers(cluster_.spec_with_workers({1}));
    if (i == 100) coordinator_.update_workers(cluster_.spec_with_workers({0, 2}));
  }
  coordinator_.join(kJoinLimit);
  EXPECT_THAT(counts(), Each(1));
}

TEST_F(DynamicShards, AnotherNumberOfWorkersContinuesFromAPosition) {
  const auto make = [&] {
    return coordinator_.create_per_worker_dataset(batches(),
                                                  {.shard = Shard::kDynamic, .epochs = 2});
  };
  const auto first = make();
  run(first, 50);
  const auto positions = value_or_throw(resource(first)->positions());
  ASSERT_EQ(positions.size(), 1u);
  EXPECT_LT(positions[0].returned.size(), 100u);
  coordinator_.update_workers(cluster_.spec_with_workers({2}));
  const auto second = make();
  throw_if_error(resource(second)->restore(positions));
  EXPECT_EQ(value_or_throw(resource(second)->positions()), positions);
  EXPECT_EQ(run(second, 2 * kBatches), 2 * kBatches - 50);
  EXPECT_THAT(counts(), Each(2));
}

TEST_F(DynamicShards, AFunctionMayDrawFromTwoSharedDatasets) {
  const auto many =
      coordinator_.create_per_worker_dataset(Dataset::range(900), {.shard = Shard::kDynamic});
  const auto few =
      coordinator_.create_per_worker_dataset(Dataset::range(700), {.shard = Shard::kDynamic});
  const auto both = function(
      "both", std::function<Tensor(Iterator&, Iterator&)>([this](Iterator& a, Iterator& b) {
        const Tensor number = (*a.next_optional())[0], other = (*b.next_optional())[0];
        counts_->assign_add(ones_at(other));
        return number + other;
      }));
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < 1000; ++i) {
    values.push_back(coordinator_.schedule(both, many.iterator(), few.iterator()));
  }
  coordinator_.join(kJoinLimit);
  EXPECT_EQ(std::ranges::count_if(values, [](const auto& value) { return value.has_value(); }),
            700);
  EXPECT_EQ(total(), 700);
  EXPECT_EQ(std::ranges::max(counts()), 1);
}

// Writes files with the numbers from 0 up to kNumbers, in order.
std::vector<std::string> write_numbers(const std::string& folder, int files) {
  std::vector<std::string> paths;
  for (int i = 0; i < files; ++i) {
    std::ofstream file(paths.emplace_back(absl::StrCat(folder, "/", i, ".csv")));
    file << "number\n";
    for (int64_t j = kNumbers * i / files; j < kNumbers * (i + 1) / files; ++j) file << j << "\n";
  }
  return paths;
}

TEST_F(DynamicShards, ARangeIsAFileOrAPartOfOne) {
  for (int files : {1, 6}) {
    SCOPED_TRACE(files);
    const TemporaryFolder folder;
    const Dataset numbers =
        Dataset::csv(write_numbers(folder.path(), files), {.columns = {{"number", torch::kInt64}}});
    const auto data = coordinator_.create_per_worker_dataset(
        numbers.shuffle(10).batch(8), {.shard = Shard::kDynamic, .epochs = 2});
    const int64_t before = total();
    run(data, 300);
    EXPECT_EQ(total(), before + 2 * kNumbers);
    EXPECT_THAT(counts(), Each(before / kNumbers + 2));
  }
}

TEST_F(DynamicShards, RejectsStepsThatCannotRunInARange) {
  const auto error = [&](const Dataset& dataset, PerWorkerDatasetOptions options) {
    return std::string(
        error_of([&] { coordinator_.create_per_worker_dataset(dataset, options); }).what());
  };
  EXPECT_THAT(
      error(Dataset::range(9).repeat(), {.shard = Shard::kDynamic}),
      HasSubstr("repeat() cannot run inside of one; remove it, and set the number of epochs"));
  EXPECT_THAT(error(Dataset::range(9).take(3).batch(2), {.shard = Shard::kDynamic}),
              HasSubstr("take() cannot run inside of one"));
  EXPECT_THAT(error(Dataset::range(9), {.shard = Shard::kDynamic, .epochs = -1}),
              HasSubstr("-1 epochs"));
  EXPECT_THAT(error(Dataset::range(9), {.shard = Shard::kFile}), HasSubstr("shard_dataset("));
}

TEST_F(DynamicShards, AClosureThatAcceptsTheEndOfAWorkersDatasetDoesNothingThere) {
  coordinator_.update_workers(cluster_.spec_with_workers({1}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(5));
  EXPECT_EQ(run(data, 8), 5);
  EXPECT_EQ(total(), 5);
  coordinator_.schedule(count_or_fail_, data.iterator());
  EXPECT_EQ(error_of([&] { coordinator_.join(); }).code(), ErrorCode::kEndOfData);
  EXPECT_EQ(total(), 5);
}

TEST_F(DynamicShards, AWorkerAtItsEndLeavesClosuresToTheOthers) {
  const auto data = coordinator_.create_per_worker_dataset([](const InputContext& context) {
    return context.input_pipeline_id == 0 ? Dataset::range(1) : Dataset::range(1, 60);
  });
  const int64_t workers = cluster_.spec().num_tasks("worker");
  EXPECT_EQ(run(data, static_cast<int>(1 + 59 * (workers - 1))), 1 + 59 * (workers - 1));
}

TEST_F(DynamicShards, RunsOfAClosureBeforeTheEndKeepTheirElements) {
  coordinator_.update_workers(cluster_.spec_with_workers({1}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(25));
  run(data, 4, 10);
  EXPECT_EQ(total(), 25);
  EXPECT_EQ(std::ranges::max(counts()), 1);
  EXPECT_EQ(value_or_throw(resource(data)->positions())[0].next, 25u);
}

TEST_F(DynamicShards, AClosureThatAcceptsTheEndOfTheProgramsIteratorIsNotScheduled) {
  Iterator numbers = Dataset::range(3).iterator();
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < 5; ++i) values.push_back(coordinator_.schedule(count_, numbers));
  coordinator_.join();
  std::vector<bool> had;
  for (const auto& value : values) had.push_back(value.ready() && value.has_value());
  EXPECT_THAT(had, ElementsAre(true, true, true, false, false));
  EXPECT_FALSE(coordinator_.fetch(values[4]).defined());
  EXPECT_EQ(total(), 3);
}

TEST_F(DynamicShards, ADatasetBeginsAgainForTheNextEpoch) {
  coordinator_.update_workers(cluster_.spec_with_workers({1}));
  for (const Shard shard : {Shard::kOff, Shard::kDynamic}) {
    const auto data = coordinator_.create_per_worker_dataset(
        Dataset::range(kNumbers).shuffle(kNumbers).batch(250), {.shard = shard});
    std::vector<int64_t> sums;
    const int64_t before = total();
    for (int epoch = 0; epoch < 3; ++epoch) {
      // Most of the closures that were scheduled before restart() have not run yet.
      for (int i = 0; i < 4; ++i) coordinator_.schedule(count_, data.iterator());
      data.restart();
    }
    coordinator_.join(kJoinLimit);
    EXPECT_EQ(total(), before + 3 * kNumbers);
    EXPECT_THAT(counts(), Each(before / kNumbers + 3));
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto value = coordinator_.schedule(count_or_fail_, data.iterator());
      sums.push_back(coordinator_.fetch(value).item<int64_t>());
      data.restart();
    }
    EXPECT_NE(sums[0], sums[1]) << "each epoch has another order";
    counts_->assign(torch::zeros({kNumbers}, torch::kInt64));
  }
}

}  // namespace
}  // namespace trireme
