// Tests of distribute_dataset() and distribute_datasets_from_function() of strategies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "trireme/function/function.h"
#include "trireme/ps/test_servers.h"
#include "trireme/strategy/parameter_server_strategy.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

class DistributeDatasetTest : public testing::Test {
 protected:
  TestServers cluster_{1};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec()), {.replicas = 2}};
};

std::vector<std::vector<int64_t>> batches_of(const Dataset& dataset) {
  std::vector<std::vector<int64_t>> batches;
  Iterator iterator = dataset.iterator();
  while (const auto element = iterator.next_optional()) {
    const Tensor batch = (*element)[0].contiguous();
    batches.emplace_back(batch.const_data_ptr<int64_t>(),
                         batch.const_data_ptr<int64_t>() + batch.numel());
  }
  return batches;
}

InputContext context_of(int worker) {
  return {.num_input_pipelines = 2, .input_pipeline_id = worker, .num_replicas_in_sync = 2};
}

TEST_F(DistributeDatasetTest, EveryWorkerGetsEverythingUnlessAskedOtherwise) {
  const DatasetCreator creator = strategy_.distribute_dataset(Dataset::range(6).batch(4));
  for (int worker : {0, 1}) {
    EXPECT_THAT(batches_of(creator.make(context_of(worker))),
                ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5)));
  }
}

TEST_F(DistributeDatasetTest, DividesAmongWorkersAndReplicas) {
  const DatasetCreator creator =
      strategy_.distribute_dataset(Dataset::range(8).batch(3), {.shard = Shard::kAuto});
  EXPECT_THAT(batches_of(creator.make(context_of(0))),
              ElementsAre(ElementsAre(0, 2), ElementsAre(4), ElementsAre(6)));
  EXPECT_THAT(batches_of(creator.make(context_of(1))),
              ElementsAre(ElementsAre(1, 3), ElementsAre(5), ElementsAre(7)));
  const DatasetCreator without_batches = strategy_.distribute_dataset(Dataset::range(8));
  EXPECT_THAT(error_text([&] { without_batches.make(context_of(0)); }), HasSubstr("add batch()"));
}

TEST_F(DistributeDatasetTest, AFunctionSeesTheInputContext) {
  const DatasetCreator creator =
      strategy_.distribute_datasets_from_function([](const InputContext& context) {
        return Dataset::range(4).shard(context).batch(context.get_per_replica_batch_size(2));
      });
  EXPECT_THAT(batches_of(creator.make(context_of(1))), ElementsAre(ElementsAre(1), ElementsAre(3)));
}

TEST_F(DistributeDatasetTest, ReplicasDrawTheirPartsOfABatch) {
  const auto sums = function("sums", [&](Iterator& batches) {
    return strategy_.run([](Iterator& mine) { return mine.next().sum(); }, batches);
  });
  Iterator batches =
      strategy_.distribute_dataset(Dataset::range(8).batch(4)).make(context_of(0)).iterator();
  for (int64_t first : {0, 4}) {
    const PerReplica<Tensor> drawn = sums(batches);
    EXPECT_EQ(drawn[0].item<int64_t>(), 2 * first + 1);
    EXPECT_EQ(drawn[1].item<int64_t>(), 2 * first + 5);
  }
}

}  // namespace
}  // namespace trireme
