// Worker processes that share a dataset (Shard::kDynamic) are killed at random moments of an epoch,
// and restarted. In each epoch every example is counted once on the parameter servers.
// TRIREME_KILLS sets the number of kills, TRIREME_SEED their order and times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <deque>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/setting.h"

namespace trireme {
namespace {

using std::chrono::minutes;
using torch::Tensor;

constexpr int64_t kSharedExamples = 9000;  // A single file has three ranges.
constexpr int64_t kBatch = 12;
constexpr int kSharingWorkers = 3;
constexpr size_t kClosuresAtOnce = 60;
const int64_t kShardKills = setting("TRIREME_KILLS", 3);
const int64_t kShardSeed = setting("TRIREME_SEED", 7);

class DynamicShardKills : public testing::TestWithParam<const char*> {
 protected:
  // Returns the numbers of the examples, from memory or from files.
  Dataset examples() const {
    const std::string source = GetParam();
    if (source == "memory") return Dataset::range(kSharedExamples);
    const int64_t files = source == "files" ? 7 : 1;
    std::vector<std::string> paths;
    for (int64_t i = 0; i < files; ++i) {
      std::ofstream file(paths.emplace_back(absl::StrCat(folder_.path(), "/", i, ".csv")));
      file << "number\n";
      for (int64_t j = i; j < kSharedExamples; j += files) file << j << "\n";
    }
    return Dataset::csv(paths, {.columns = {{"number", torch::kInt64}}});
  }

  std::mt19937 random_{static_cast<uint32_t>(kShardSeed)};
  TemporaryFolder folder_;
  ProcessCluster cluster_{
      {{.workers = kSharingWorkers, .ps = 2}, /*flags=*/{"--data-root", folder_.path()}}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec())};
  ParameterServers::Scope scope_ = strategy_.scope();
  // Each server has a count of its own, so that a push that reached one server only is noticed.
  const Variable first_{"first", torch::zeros({kSharedExamples}, torch::kInt64)};
  const Variable second_{"second", torch::zeros({kSharedExamples}, torch::kInt64)};
  const Function<Tensor(Iterator&)> step_ =
      function("step", std::function<Tensor(Iterator&)>([this](Iterator& examples) {
                 const auto element = examples.next_optional();
                 if (!element) return Tensor();
                 const Tensor numbers = (*element)[0];
                 const Tensor counts =
                     torch::zeros({kSharedExamples}, torch::kInt64)
                         .index_add(0, numbers, torch::ones({numbers.numel()}, torch::kInt64));
                 first_.assign_add(counts);
                 second_.assign_add(counts);
                 const Tensor work = torch::ones({200, 200});
                 return work.matmul(work).sum();
               }));
  ClusterCoordinator coordinator_{strategy_};
};

TEST_P(DynamicShardKills, EveryExampleCountsOnceInEachEpoch) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kShardSeed));
  const PerWorkerDataset data = coordinator_.create_per_worker_dataset(
      examples().shuffle(100).batch(kBatch), {.shard = Shard::kDynamic});
  for (int64_t kills = 0, epoch = 1; kills < kShardKills; ++epoch) {
    SCOPED_TRACE(absl::StrCat("epoch ", epoch));
    const auto batches = static_cast<size_t>(kSharedExamples / kBatch);
    size_t next_kill = random_() % (batches / 2);
    std::deque<RemoteValue<>> in_flight;
    // Closures after the end of the data have no value.
    for (size_t i = 0; in_flight.size() < kClosuresAtOnce || in_flight.front().has_value(); ++i) {
      ASSERT_LT(i, 4 * batches) << "the epoch does not end";
      if (in_flight.size() == kClosuresAtOnce) in_flight.pop_front();
      in_flight.push_back(coordinator_.schedule(step_, data.iterator()));
      if (i != next_kill || kills == kShardKills) continue;
      cluster_.restart({"worker", static_cast<int>(random_() % kSharingWorkers)});
      ++kills;
      next_kill += 1 + random_() % (batches / 2);
    }
    coordinator_.join(minutes(2));
    for (const Variable& counts : {first_, second_}) {
      const Tensor wrong = (counts.read() != epoch).nonzero().flatten();
      ASSERT_EQ(wrong.numel(), 0) << counts.name() << " has other counts for " << wrong;
    }
    data.restart();
  }
}

INSTANTIATE_TEST_SUITE_P(Sources, DynamicShardKills, testing::Values("memory", "file", "files"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace trireme
