// A table of a million rows is trained by rows: the bytes that workers push follow the batch,
// workers hold no tensor of the table's size, and rows that no step looked up stay as they are, bit
// by bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/base/machine.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/relative_distance.h"

namespace trireme {
namespace {

using torch::Tensor;

constexpr int64_t kManyRows = 1'000'000, kRowNumbers = 64;
constexpr uint64_t kBytesOfRow = kRowNumbers * 4 + 8;  // a row and its id
constexpr int64_t kSampledRows = 512;                  // rows that steps look up

class LargeTable : public testing::Test {
 protected:
  uint64_t pushed_bytes() {
    uint64_t sum = 0;
    for (int i = 0; i < 2; ++i) {
      sum += cluster_.describe({"ps", i}).counters.at("rpc_server/trireme.Variables/Push/bytes_in");
    }
    return sum;
  }

  Variable make_table(const Tensor& start) const {
    const auto scope = strategy_.scope();
    return Variable("table", start);
  }

  ProcessCluster cluster_{{{.workers = 2, .ps = 2}}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec()), {.partitioner = FixedPartitioner(2)}};
};

TEST_F(LargeTable, IsTrainedByRows) {
  torch::manual_seed(1);
  const Tensor start = torch::rand({kManyRows, kRowNumbers});
  const Tensor rows = torch::arange(kSampledRows) * (kManyRows / kSampledRows);
  const Variable table = make_table(start), reference("sampled", start.index_select(0, rows));
  const Adam optimizer({table}, {.lr = 0.1}), by_rows({reference}, {.lr = 0.1});
  ClusterCoordinator coordinator(strategy_);
  const auto step = function("step",
                             [&](const Tensor& ids) {
                               const Tensor loss = torch::embedding(table.read(), ids).pow(2).sum();
                               optimizer.minimize(loss, {.clip_norm = 1});
                               return loss;
                             },
                             {.check_capture = false});
  for (const int64_t batch : {32, 256}) {
    for (int i = 0; i < 4; ++i) {
      // Both shards are updated in each step, as Adam counts the updates of each shard. Each row is
      // looked up twice and pushed once.
      Tensor places = torch::randperm(kSampledRows - 2).slice(0, 0, batch - 2) + 1;
      places = torch::cat({torch::tensor({int64_t{0}, kSampledRows - 1}), places});
      places = torch::cat({places, places});
      const uint64_t before = pushed_bytes();
      coordinator.schedule(step, rows.index_select(0, places));
      coordinator.join();
      const uint64_t bytes = pushed_bytes() - before;
      EXPECT_GE(bytes, batch * kBytesOfRow);
      EXPECT_LT(bytes, batch * kBytesOfRow + 2000);
      by_rows.minimize(
          torch::embedding(reference.read(), places, -1, false, /*sparse=*/true).pow(2).sum(),
          {.clip_norm = 1});
    }
  }
  const Tensor trained = table.read();
  EXPECT_LT(relative_distance(trained.index_select(0, rows), reference.read().detach()), 1e-6);
  EXPECT_FALSE(trained.index_select(0, rows).equal(start.index_select(0, rows)));
  EXPECT_TRUE(trained.index_copy(0, rows, start.index_select(0, rows)).equal(start));
  // The table has 244 MiB. A server without variables holds less than 350 MiB.
  for (int i = 0; i < 2; ++i) {
    EXPECT_LT(process_memory(cluster_.pid({"worker", i})).peak, 450 << 20) << "worker " << i;
  }
}

TEST_F(LargeTable, AWholeGradientIsRejectedWhenTheStepIsScheduled) {
  const Variable table = make_table(torch::zeros({kManyRows, kRowNumbers}));
  const Sgd optimizer({table}, {.lr = 0.1});
  ClusterCoordinator coordinator(strategy_);
  const auto step = function("step",
                             [&](const Tensor& ids) {
                               const Tensor weight = table.read();
                               const Tensor loss = torch::embedding(weight, ids).sum();
                               const auto gradients = torch::autograd::grad({loss}, {weight});
                               optimizer.apply_gradients({gradients[0] + 1});
                             },
                             {.check_capture = false});
  const uint64_t before = pushed_bytes();
  EXPECT_THAT(error_text([&] { coordinator.schedule(step, torch::arange(10)); }),
              testing::AllOf(testing::HasSubstr("variable 'table"),
                             testing::HasSubstr("operator 'aten::add."),
                             testing::HasSubstr("largest_whole_gradient")));
  coordinator.join();
  EXPECT_EQ(pushed_bytes(), before);
}

}  // namespace
}  // namespace trireme
