// all_reduce() in steps whose replicas run at the same time.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "trireme/distribute/strategy.h"
#include "trireme/function/function.h"

namespace trireme {
namespace {

// Normalizes a batch by the mean and the variance of all parts, which takes two all_reduces with
// code of the replicas before, between and after them.
void expect_normalized_over_the_whole_batch(const Strategy& strategy) {
  const auto scope = strategy.scope();
  const Variable variance("variance", torch::zeros({3}), {.aggregation = Aggregation::kMean});
  const auto step = function("step", [&](const PerReplica<torch::Tensor>& x) {
    return strategy.run(
        [&](const torch::Tensor& mine) {
          const torch::Tensor rest = mine - all_reduce(ReduceOp::kMean, mine.mean(0));
          const torch::Tensor squares = all_reduce(ReduceOp::kSum, rest.square().sum(0));
          const torch::Tensor mean_square =
              squares / (mine.size(0) * strategy.num_replicas_in_sync());
          variance.assign(mean_square);
          return rest / mean_square.sqrt();
        },
        x);
  });
  for (int i = 0; i < 5; ++i) {
    const torch::Tensor batch = torch::randn({8, 3}) * (i + 1) + 3;
    const auto parts = step(PerReplica<torch::Tensor>({batch.slice(0, 0, 4), batch.slice(0, 4)}));
    const torch::Tensor rest = batch - batch.mean(0), whole = rest.square().mean(0);
    EXPECT_TRUE(torch::allclose(torch::cat(parts.values()), rest / whole.sqrt(), 1e-4, 1e-5));
    EXPECT_TRUE(torch::allclose(variance.read(), whole, 1e-4, 1e-5));
  }
}

TEST(AllReduce, CombinesTheValuesOfMirroredReplicas) {
  expect_normalized_over_the_whole_batch(MirroredStrategy({.devices = {"/cpu:0", "/cpu:1"}}));
}

TEST(AllReduce, CombinesTheValuesOfReplicasWithCentralStorage) {
  expect_normalized_over_the_whole_batch(
      CentralStorageStrategy({.compute_devices = {"/cpu:0", "/cpu:1"}}));
}

}  // namespace
}  // namespace trireme
