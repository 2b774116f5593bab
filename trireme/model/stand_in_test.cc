// Replicas of one process that get no examples.
#include "trireme/model/stand_in.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "trireme/model/model.h"
#include "trireme/testing/mirrored_training.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using internal::stand_in_rows;
using torch::Tensor;

Strategy mirrored_on_three() {
  return MirroredStrategy({.devices = device_names("cpu", 3)});
}

Strategy central_on_three() {
  return CentralStorageStrategy({.compute_devices = device_names("cpu", 3)});
}

// Trains on batches of 6, 6 and 1 examples. Replicas 1 and 2 get none of the last one.
template <typename Net>
double distance_with_empty_parts(const Strategy& strategy) {
  return largest_distance(train_on_rows<Net>(strategy, 13, 6),
                          train_on_rows<Net>(Strategy(), 13, 6));
}

TEST(StandIn, NetsTrainToTheWeightsAndLossesOfOneProcess) {
  for (const Strategy& strategy : {mirrored_on_three(), central_on_three()}) {
    EXPECT_LE(distance_with_empty_parts<ConvNet>(strategy), 1e-9);
    EXPECT_LE(distance_with_empty_parts<PoolingNet>(strategy), 1e-9);
    EXPECT_LE(distance_with_empty_parts<TransformerNet>(strategy), 1e-9);
  }
}

TEST(StandIn, ANetWithBatchNormStaysFinite) {
  for (const Strategy& strategy : {mirrored_on_three(), central_on_three()}) {
    for (const Tensor& tensor : train_on_rows<BatchNormNet>(strategy, 13, 6)) {
      EXPECT_TRUE(tensor.isfinite().all().item<bool>());
    }
  }
}

// The mean of three copies, of which two are as they were before the step.
TEST(StandIn, LeavesTheStatisticsOfBatchNormUnchanged) {
  nn::Sequential net(nn::BatchNorm2d(2), nn::Flatten(), nn::Linear(8, 1));
  Model model(net, mirrored_on_three());
  model.compile({.optimizer = Sgd({.lr = 0}), .loss = nn::MSELoss()});
  model.fit(torch::full({1, 2, 2, 2}, 6.0f), torch::zeros({1, 1}),
            {.batch_size = 3, .epochs = 1, .shuffle = false, .verbose = Verbose::kSilent});
  const auto buffers = net->named_buffers();
  EXPECT_TRUE(buffers["0.running_mean"].allclose(torch::full({2}, 0.2f)))  // 0.1 * 6 / 3
      << buffers["0.running_mean"];
  EXPECT_TRUE(buffers["0.running_var"].allclose(torch::full({2}, (0.9f + 1 + 1) / 3)))
      << buffers["0.running_var"];
  EXPECT_EQ(buffers["0.num_batches_tracked"].item<int64_t>(), 1);
}

TEST(StandIn, CountsAsNoExample) {
  const Tensor x = torch::randn({13, 4}), y = torch::randint(3, {13});
  const auto losses = [&](const Strategy& strategy) {
    Model model(nn::Linear(4, 3), strategy);
    nn::init::constant_(model.net()->weight, 0.25);
    nn::init::zeros_(model.net()->bias);
    model.compile(
        {.optimizer = Sgd({.lr = 0}), .loss = nn::CrossEntropyLoss(), .metrics = {Accuracy()}});
    const History history = model.fit(
        x, y, {.batch_size = 6, .epochs = 1, .shuffle = false, .verbose = Verbose::kSilent});
    return torch::tensor({history["loss"].back(), history["accuracy"].back()});
  };
  const Tensor mirrored = losses(mirrored_on_three()), alone = losses(Strategy());
  EXPECT_TRUE(mirrored.allclose(alone, 1e-5)) << mirrored << alone;
}

// A step of one's own sees parts without examples, as eager code would. A sum over no examples is
// 0.
TEST(StandIn, AnOwnStepGetsPartsWithoutExamples) {
  const Tensor x = torch::randn({13, 128}, torch::kDouble),
               y = torch::randn({13, 3}, torch::kDouble);
  const auto train = [&](const Strategy& strategy) {
    torch::manual_seed(3);
    PoolingNet net;
    net->to(torch::kDouble);
    Model model(net, strategy);
    Sgd optimizer(model.net(), {.lr = 0.01});
    model.compile({.optimizer = optimizer, .train_step = [&](const std::vector<Tensor>& batch) {
                     const Tensor loss = torch::mse_loss(model.net()->forward(batch[0]), batch[1],
                                                         torch::Reduction::Sum);
                     optimizer.minimize(loss / 6);
                     return std::map<std::string, Tensor>{{"loss", loss.detach()}};
                   }});
    model.fit(x, y, {.batch_size = 6, .epochs = 3, .shuffle = false, .verbose = Verbose::kSilent});
    return net->parameters();
  };
  EXPECT_LE(largest_distance(train(mirrored_on_three()), train(Strategy())), 1e-9);
}

TEST(StandIn, RowsAreThoseOfAnotherPart) {
  const Tensor x = torch::arange(6).view({3, 2}), y = torch::rand({3});
  const auto rows = stand_in_rows({x.narrow(0, 0, 0), y.narrow(0, 0, 0)}, {x, y});
  EXPECT_TRUE(rows[0].equal(x.narrow(0, 0, 2)));
  EXPECT_TRUE(rows[1].equal(y.narrow(0, 0, 2)));
  const auto repeated = stand_in_rows({x.narrow(0, 0, 0)}, {x.narrow(0, 2, 1)});
  EXPECT_TRUE(repeated[0].equal(torch::tensor({4, 5, 4, 5}).view({2, 2})));
  const auto zeros = stand_in_rows({x.narrow(0, 0, 0), torch::tensor(7)}, {});
  EXPECT_TRUE(zeros[0].equal(torch::zeros({2, 2}, torch::kLong)));
  EXPECT_TRUE(zeros[1].equal(torch::tensor(7)));
}

}  // namespace
}  // namespace trireme
