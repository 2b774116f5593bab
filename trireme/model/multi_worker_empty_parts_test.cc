// Workers that get no examples of some batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "trireme/model/model.h"
#include "trireme/testing/mirrored_training.h"
#include "trireme/testing/worker_threads.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using std::chrono::seconds;
using testing::Each;
using torch::Tensor;

const MultiWorkerMirroredStrategyOptions kGenerous{.lease = seconds(10),
                                                   .connect_timeout = seconds(60)};

// Calls `train` on two workers, and returns the tensors of each.
std::vector<std::vector<Tensor>> on_two_workers(
    const std::function<std::vector<Tensor>(const Strategy& strategy, int worker)>& train) {
  const WorkerThreads workers(2);
  std::vector<std::vector<Tensor>> trained(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    trained[me.task->index] = train(MultiWorkerMirroredStrategy(me, kGenerous), me.task->index);
  }),
              Each(""));
  return trained;
}

// Worker 1 gets none of the last batch, which has one example.
template <typename Net>
std::vector<std::vector<Tensor>> train_33_rows() {
  return on_two_workers(
      [](const Strategy& strategy, int) { return train_on_rows<Net>(strategy, 33, 32); });
}

void expect_equal_and_finite(const std::vector<std::vector<Tensor>>& trained) {
  ASSERT_EQ(trained[0].size(), trained[1].size());
  for (size_t i = 0; i < trained[0].size(); ++i) {
    EXPECT_TRUE(trained[0][i].equal(trained[1][i])) << trained[0][i] << trained[1][i];
    EXPECT_TRUE(trained[0][i].isfinite().all().item<bool>()) << trained[0][i];
  }
}

template <typename Net>
double distance_of_33_rows() {
  const auto expected = train_on_rows<Net>(Strategy(), 33, 32);
  double largest = 0;
  for (const auto& trained : train_33_rows<Net>()) {
    largest = std::max(largest, largest_distance(trained, expected));
  }
  return largest;
}

TEST(EmptyPartsOfWorkers, NetsTrainToTheWeightsAndLossesOfOneProcess) {
  EXPECT_LE(distance_of_33_rows<ConvNet>(), 1e-9);
  EXPECT_LE(distance_of_33_rows<TransformerNet>(), 1e-9);
}

TEST(EmptyPartsOfWorkers, ANetWithBatchNormTrains) {
  expect_equal_and_finite(train_33_rows<BatchNormNet>());
}

// Worker 1 has no data at all, and zeros stand in for it. They leave the statistics as they were,
// and the mean of both workers is between those of worker 0 and those.
TEST(EmptyPartsOfWorkers, ZerosLeaveTheStatisticsOfBatchNormUnchanged) {
  const auto trained = on_two_workers([](const Strategy& strategy, int worker) {
    nn::Sequential net(nn::BatchNorm1d(2), nn::Linear(2, 1));
    Model model(net, strategy);
    model.compile({.optimizer = Sgd({.lr = 0}), .loss = nn::MSELoss()});
    const int64_t rows = worker == 0 ? 4 : 0;
    const Dataset data =
        Dataset::from_tensors({torch::full({rows, 2}, 6.0f), torch::zeros({rows, 1})}).batch(4);
    model.fit(DatasetCreator([&](const InputContext&) { return data; }),
              {.epochs = 1, .verbose = Verbose::kSilent});
    return net->buffers();
  });
  for (const auto& buffers : trained) {
    ASSERT_EQ(buffers.size(), 3);
    EXPECT_TRUE(buffers[0].allclose(torch::full({2}, 0.3f))) << buffers[0];  // 0.1 * 6 / 2
    EXPECT_TRUE(buffers[1].allclose(torch::full({2}, (0.9f + 1) / 2))) << buffers[1];
    EXPECT_EQ(buffers[2].item<int64_t>(), 1);
  }
}

// A net whose gradients are not numbers for zeros, as those of attention with a mask of zeros are.
struct LogarithmNetImpl : nn::Module {
  LogarithmNetImpl() {
    register_module("linear", linear);
    nn::init::constant_(linear->weight, 0.5);
    nn::init::zeros_(linear->bias);
  }
  Tensor forward(const Tensor& x) { return linear(x.log()); }
  nn::Linear linear{2, 1};
};
TORCH_MODULE(LogarithmNet);

// Worker 1 has no data at all, or none of the last batch.
TEST(EmptyPartsOfWorkers, RowsThatStandInAddNothingEvenIfTheirGradientsAreNotNumbers) {
  for (int accumulate_steps : {1, 2}) {
    const auto train = [&](const Strategy& strategy, int worker) {
      LogarithmNet net;
      Model model(net, strategy);
      model.compile({.optimizer = Sgd({.lr = 0.1}),
                     .loss = nn::MSELoss(),
                     .accumulate_steps = accumulate_steps});
      const int64_t rows = worker == 0 ? 8 : 0;
      const Dataset data =
          Dataset::from_tensors({torch::full({rows, 2}, 6.0f), torch::zeros({rows, 1})}).batch(4);
      model.fit(DatasetCreator([&](const InputContext&) { return data; }),
                {.epochs = 2, .verbose = Verbose::kSilent});
      return net->parameters();
    };
    const auto trained = on_two_workers(train);
    expect_equal_and_finite(trained);
    EXPECT_LE(largest_distance(trained[0], train(Strategy(), 0)), 1e-6);
  }
}

// The loss has a variable of its own, whose gradient a worker without examples has as well.
TEST(EmptyPartsOfWorkers, TheLossMayHaveVariables) {
  struct TemperedNetImpl : nn::Module {
    TemperedNetImpl() {
      register_module("linear", linear);
      scale = register_parameter("scale", torch::ones({1}, torch::kDouble));
    }
    Tensor forward(const Tensor& x) { return linear(x); }
    nn::Linear linear{4, 2};
    Tensor scale;
  };
  const auto train = [](const Strategy& strategy, int) {
    auto net = std::make_shared<TemperedNetImpl>();
    net->to(torch::kDouble);
    nn::init::constant_(net->linear->weight, 0.5);
    nn::init::zeros_(net->linear->bias);
    Model model(nn::ModuleHolder<TemperedNetImpl>(net), strategy);
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = [net](Tensor output, Tensor target) {
                     return (output * net->scale - target).square().mean();
                   }});
    model.fit(torch::linspace(0, 1, 20, torch::kDouble).view({5, 4}),
              torch::ones({5, 2}, torch::kDouble),
              {.batch_size = 4, .epochs = 3, .shuffle = false, .verbose = Verbose::kSilent});
    return net->parameters();
  };
  const auto expected = train(Strategy(), 0);
  for (const auto& trained : on_two_workers(train)) {
    EXPECT_LE(largest_distance(trained, expected), 1e-12);
  }
}

// A step of one's own gets the part as it is. Batch norm then writes no statistics, in the last
// step, or already in the first one.
TEST(EmptyPartsOfWorkers, AnOwnStepMayHaveBatchNorm) {
  for (int64_t rows : {5, 1}) {
    const auto trained = on_two_workers([&](const Strategy& strategy, int) {
      nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(2, 3, 3)), nn::BatchNorm2d(3),
                         nn::MaxPool2d(3), nn::Flatten(), nn::Linear(12, 1));
      net->to(torch::kDouble);
      Model model(net, strategy);
      Sgd optimizer(model.net(), {.lr = 0.01});
      model.compile({.optimizer = optimizer, .train_step = [&](const std::vector<Tensor>& batch) {
                       const Tensor loss =
                           (model.net()->forward(batch[0]) - batch[1]).square().sum();
                       optimizer.minimize(loss / 4);
                       return std::map<std::string, Tensor>{{"loss", loss.detach()}};
                     }});
      model.fit(torch::linspace(0, 1, rows * 128, torch::kDouble).view({rows, 2, 8, 8}),
                torch::ones({rows, 1}, torch::kDouble),
                {.batch_size = 4, .epochs = 2, .shuffle = false, .verbose = Verbose::kSilent});
      std::vector<Tensor> tensors = net->parameters();
      tensors.push_back(net->named_buffers()["1.running_mean"].clone());
      tensors.push_back(net->named_buffers()["1.running_var"].clone());
      return tensors;
    });
    expect_equal_and_finite(trained);
  }
}

}  // namespace
}  // namespace trireme
