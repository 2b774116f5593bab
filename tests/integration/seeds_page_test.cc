// docs/reproducibility.md says which random numbers repeat in a program, what makes them differ,
// and which trainings have the same weights in a second run. A test that fails here asks for a
// change of that page too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/distribute/strategy.h"
#include "trireme/exec/random.h"
#include "trireme/function/function.h"
#include "trireme/model/model.h"
#include "trireme/runtime/session.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using torch::Tensor;

class SeedsPage : public testing::Test {
 protected:
  ~SeedsPage() override { set_seed(0); }
};

// Returns the tensors that an iterator still has, one behind the other.
Tensor drawn(Iterator iterator) {
  std::vector<Tensor> all;
  while (auto element = iterator.next_optional()) all.push_back(element->at(0).flatten());
  return torch::cat(all);
}

Tensor with_noise(const Tensor& x) {
  return x + torch::rand({});
}

TEST_F(SeedsPage, IteratorsOverOneDatasetRepeatItsOrderAndItsNoise) {
  const Dataset data =
      Dataset::from_tensors({torch::arange(100).to(torch::kFloat)}).shuffle(100).map(with_noise);
  const Tensor first = drawn(data.iterator());
  EXPECT_TRUE(torch::equal(drawn(data.iterator()), first));
  EXPECT_FALSE(torch::equal(drawn(data.iterator({.seed = 1})), first));
  const Tensor both = drawn(data.repeat(2).iterator());
  EXPECT_FALSE(torch::equal(both.slice(0, 0, 100), both.slice(0, 100)));
}

// Returns the losses of the batches, which tell the order of the examples.
std::vector<double> losses_of_fit(const Model<torch::nn::Linear>& model, int epochs) {
  const Tensor x = torch::ones({64, 1}), y = torch::arange(64).to(torch::kFloat).unsqueeze(1);
  std::vector<double> losses;
  const auto note = [&](Fit&, const Logs& logs) { losses.push_back(logs["loss"]); };
  Model(model).fit(x, y,
                   {.batch_size = 4,
                    .epochs = epochs,
                    .callbacks = {on_batch_end(note)},
                    .verbose = Verbose::kSilent});
  return losses;
}

Model<torch::nn::Linear> model_that_stays() {
  Model model(torch::nn::Linear(1, 1));
  model.compile(
      {.optimizer = Sgd({.lr = 0}), .loss = [](const Tensor& output, const Tensor& target) {
         return (target + 0 * output).square().mean();
       }});
  return model;
}

TEST_F(SeedsPage, CallsOfFitRepeatTheOrderOfTheExamples) {
  const auto model = model_that_stays();
  const std::vector<double> first = losses_of_fit(model, 1);
  EXPECT_EQ(losses_of_fit(model, 1), first);
  const std::vector<double> two_epochs = losses_of_fit(model, 2);
  ASSERT_EQ(two_epochs.size(), 2 * first.size());
  EXPECT_NE(std::vector(two_epochs.begin() + first.size(), two_epochs.end()), first);
  set_seed(1);
  EXPECT_NE(losses_of_fit(model, 1), first);
}

TEST_F(SeedsPage, TheSeedOfLibTorchDoesNotChangeTheOrder) {
  torch::manual_seed(100);
  const std::vector<double> first = losses_of_fit(model_that_stays(), 1);
  torch::manual_seed(101);
  EXPECT_EQ(losses_of_fit(model_that_stays(), 1), first);
  set_seed(1);
  EXPECT_NE(losses_of_fit(model_that_stays(), 1), first);
}

TEST_F(SeedsPage, FunctionsDrawTheSameNoiseUnlessTheyHaveSeeds) {
  const auto noise = [] { return torch::rand({8}); };
  const auto first = function("first", noise), second = function("second", noise),
             seeded = function("seeded", noise, {.seed = 1});
  const Tensor values = first();
  EXPECT_TRUE(torch::equal(second(), values));
  EXPECT_FALSE(torch::equal(seeded(), values));
  EXPECT_FALSE(torch::equal(first(), values));
  EXPECT_TRUE(torch::equal(function("anew", noise)(), values));
}

TEST_F(SeedsPage, EachLambdaThatASessionRunsIsStepZero) {
  InProcessTestCluster cluster({.workers = 1});
  Session session(cluster.target({"worker", 0}));
  const auto noise = [] { return torch::rand({8}); };
  const Tensor values = session.run(noise);
  EXPECT_TRUE(torch::equal(session.run(noise), values));
  const auto made_once = function("noise", noise);
  EXPECT_TRUE(torch::equal(session.run(made_once), values));
  EXPECT_FALSE(torch::equal(session.run(made_once), values));
}

TEST_F(SeedsPage, RandomMapsOfOneDatasetDrawTheSameNumbers) {
  const Dataset base = Dataset::from_tensors({torch::zeros({16})});
  const auto [first, second] =
      base.map([](const Tensor& x) { return std::make_pair(x, x + torch::rand({})); })
          .map([](const Tensor& x, const Tensor& y) {
            return std::make_pair(x + torch::rand({}), y);
          })
          .iterator()
          .next<2>();
  EXPECT_TRUE(torch::equal(first, second));
  const auto [one, other] =
      Dataset::zip({base.map(with_noise), base.map(with_noise)}).iterator().next<2>();
  EXPECT_TRUE(torch::equal(one, other));
}

// Trains a net with dropout and returns what it predicts.
Tensor trained(const Strategy& strategy) {
  torch::manual_seed(1);
  Model model(torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::Dropout(0.5),
                                    torch::nn::Linear(32, 1)),
              strategy);
  const Tensor x = torch::rand({256, 8}), y = x.sum(1, true);
  model.compile({.optimizer = Adam({.lr = 0.01}), .loss = torch::nn::MSELoss()});
  const DatasetCreator data([=](const InputContext&) {
    return Dataset::from_tensors({x, y}).shuffle(256).repeat().batch(32);
  });
  model.fit(data, {.epochs = 3, .steps_per_epoch = 8, .verbose = Verbose::kSilent});
  return model.predict(x);
}

TEST(SecondRun, HasTheSameWeightsInOneProcess) {
  const Tensor first = trained(Strategy());
  EXPECT_TRUE(torch::equal(trained(Strategy()), first));
  set_seed(1);
  EXPECT_FALSE(torch::equal(trained(Strategy()), first));
  set_seed(0);
}

TEST(SecondRun, HasTheSameWeightsOnTwoDevices) {
  const MirroredStrategyOptions options{.devices = {"/cpu:0", "/cpu:1"}};
  const Tensor first = trained(MirroredStrategy(options));
  EXPECT_TRUE(torch::equal(trained(MirroredStrategy(options)), first));
}

TEST(SecondRun, HasTheSameWeightsOnOneWorkerWithParameterServers) {
  const auto run = [] {
    InProcessTestCluster cluster({.workers = 1, .ps = 2});
    return trained(ParameterServerStrategy(Cluster(cluster.spec())));
  };
  const Tensor first = run();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(torch::equal(run(), first));
}

}  // namespace
}  // namespace trireme
