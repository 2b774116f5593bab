// Models on several workers, whose steps come in any order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>

#include "trireme/model/model.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using testing::DoubleNear;
using testing::Each;
using torch::Tensor;

class ModelClusterTest : public testing::Test {
 protected:
  ModelClusterTest() { torch::manual_seed(1); }

  InProcessTestCluster cluster_{{.workers = 3, .ps = 2}};
  const Strategy strategy_ = ParameterServerStrategy(Cluster(cluster_.spec()));
};

TEST_F(ModelClusterTest, TrainsOnTheDatasetsOfWorkers) {
  Model model(nn::Linear(2, 1), strategy_);
  model.compile({.optimizer = Adam({.lr = 0.05}),
                 .loss = nn::BCEWithLogitsLoss(),
                 .metrics = {Accuracy({.threshold = 0})},
                 .steps_per_execution = 10});
  const DatasetCreator data([](const InputContext& context) {
    torch::manual_seed(context.input_pipeline_id);
    const Tensor x = torch::randn({1000, 2});
    const Tensor y = (x.sum(1, true) > 0).to(torch::kFloat);
    return Dataset::from_tensors({x, y}).shuffle(1000).repeat().batch(32);
  });
  const Tensor x = torch::randn({500, 2});
  int batches = 0;
  const History history =
      model.fit(data, {.epochs = 5,
                       .steps_per_epoch = 25,
                       .validation = std::pair(x, (x.sum(1, true) > 0).to(torch::kFloat)),
                       .callbacks = {on_batch_end([&](Fit&, const Logs&) { ++batches; })},
                       .verbose = Verbose::kSilent});
  EXPECT_EQ(batches, 15);  // executions of 10, 10 and 5 steps
  EXPECT_GT(history["val_accuracy"].back(), 0.95);
  EXPECT_GT(history["accuracy"].back(), 0.95);
  EXPECT_LT(history["loss"].back(), history["loss"].front());
}

// The loss is the input itself, so a sum tells whether each example was used once.
TEST_F(ModelClusterTest, EveryExampleIsUsedOnceInEachEpoch) {
  const Tensor x = torch::arange(1003, torch::kFloat).reshape({1003, 1});
  Model model(nn::Linear(1, 1), strategy_);
  model.compile(
      {.optimizer = Sgd({.lr = 0}),
       .loss = [](const Tensor& output,
                  const Tensor& target) { return (output * 0 + target).square().mean(1); },
       .steps_per_execution = 3});
  std::vector<int64_t> steps;
  const History history = model.fit(
      x, x.sqrt(),
      {.batch_size = 10,
       .epochs = 3,
       .validation = std::pair(x, x.sqrt()),
       .callbacks = {on_epoch_end([&](Fit& fit, const Logs&) { steps.push_back(fit.step()); })},
       .verbose = Verbose::kSilent});
  EXPECT_THAT(history["loss"], Each(DoubleNear(501, 1e-3)));
  EXPECT_THAT(history["val_loss"], Each(DoubleNear(501, 1e-3)));
  EXPECT_EQ(steps[1], 2 * steps[0]);
  EXPECT_EQ(steps[2], 3 * steps[0]);
  EXPECT_GE(steps[0], 101);
}

// Two replicas, which share the batches of one worker.
class ModelReplicasTest : public testing::Test {
 protected:
  ModelReplicasTest() { torch::manual_seed(1); }

  // Trains copies of a net on the same batches, with replicas and without a cluster, and compares
  // the weights and figures.
  void expect_same_training(int64_t batch_size, const CompileOptions& options) {
    nn::Linear net(3, 1), here(3, 1);
    {
      const torch::NoGradGuard no_gradients;
      here->weight.copy_(net->weight);
      here->bias.copy_(net->bias);
    }
    Model replicated(net, strategy_), plain(here);
    replicated.compile(options);
    plain.compile(options);
    const Tensor x = torch::randn({11, 3}), y = torch::randn({11, 1});
    const Dataset data = Dataset::from_tensors({x, y}).repeat().batch(batch_size);
    const FitOptions fit{.epochs = 2, .steps_per_epoch = 3, .verbose = Verbose::kSilent};
    const History expected = plain.fit(data, fit);
    const History history = replicated.fit(strategy_.distribute_dataset(data), fit);
    nn::Linear pulled(3, 1);
    strategy_.pull(replicated.net(), pulled);
    EXPECT_TRUE(torch::allclose(pulled->weight, plain.net()->weight, 1e-4, 1e-5));
    EXPECT_TRUE(torch::allclose(pulled->bias, plain.net()->bias, 1e-4, 1e-5));
    for (int i = 0; i < 2; ++i) EXPECT_NEAR(history["loss"][i], expected["loss"][i], 1e-5);
    for (int i = 0; i < 2; ++i) {
      EXPECT_NEAR(history["mean_absolute_error"][i], expected["mean_absolute_error"][i], 1e-5);
    }
  }

  InProcessTestCluster cluster_{{.workers = 1, .ps = 2}};
  const Strategy strategy_ = ParameterServerStrategy(Cluster(cluster_.spec()), {.replicas = 2});
};

// A batch of five is divided into three and two examples, and a batch of one into one and none.
TEST_F(ModelReplicasTest, TrainAsOneOnTheirWholeBatch) {
  for (const int64_t batch_size : {5, 1}) {
    SCOPED_TRACE(batch_size);
    expect_same_training(batch_size, {.optimizer = Adam({.lr = 0.05}),
                                      .loss = nn::MSELoss(),
                                      .metrics = {MeanAbsoluteError()},
                                      .steps_per_execution = 3,
                                      .clip_norm = 0.5});
  }
}

TEST_F(ModelReplicasTest, EvaluateEachExampleOnce) {
  const Tensor x = torch::arange(10, torch::kFloat).reshape({10, 1});
  Model model(nn::Linear(1, 1), strategy_);
  model.compile(
      {.optimizer = Sgd({.lr = 0}), .loss = [](const Tensor& output, const Tensor& target) {
         return (output * 0 + target).mean(1);
       }});
  // There are five batches of two.
  EXPECT_NEAR(model.evaluate(x, x, {.batch_size = 2, .verbose = Verbose::kSilent})["loss"], 4.5,
              1e-6);
  int64_t steps = 0;
  model.fit(x, x,
            {.batch_size = 2,
             .callbacks = {on_epoch_end([&](Fit& fit, const Logs&) { steps = fit.step(); })},
             .verbose = Verbose::kSilent});
  EXPECT_EQ(steps, 2) << "a step takes a batch for each replica";
  EXPECT_EQ(error_text([&] { model.fit(x, x, {.verbose = Verbose::kSilent}); }),
            "the data of fit() has too few batches for a step, which draws accumulate_steps of "
            "them for each replica of the strategy; give it more examples, or make batches "
            "smaller");
}

TEST_F(ModelReplicasTest, RejectABatchThatTheyCannotDivide) {
  Model model(nn::Linear(1, 1), strategy_);
  model.compile({.loss = nn::MSELoss()});
  const DatasetCreator data([](const InputContext& context) {
    return Dataset::from_tensors({torch::ones({9, 1}), torch::ones({9, 1})})
        .repeat()
        .batch(context.get_per_replica_batch_size(5));
  });
  EXPECT_EQ(error_text([&] { model.fit(data, {.steps_per_epoch = 2}); }),
            "a global batch of 5 cannot be divided among 2 replicas; make it a multiple of that "
            "number");
}

TEST_F(ModelReplicasTest, CannotClipAccumulatedGradients) {
  Model model(nn::Linear(1, 1), strategy_);
  EXPECT_EQ(error_text([&] {
              model.compile({.loss = nn::MSELoss(), .clip_norm = 1, .accumulate_steps = 2});
            }),
            "compile() was given clip_norm together with accumulate_steps under a strategy with 2 "
            "replicas, which would limit the gradients of each replica, not their sum; leave out "
            "one of the two options");
}

TEST_F(ModelClusterTest, RejectsRunEagerly) {
  Model model(nn::Linear(1, 1), strategy_);
  EXPECT_EQ(error_text([&] { model.compile({.loss = nn::MSELoss(), .run_eagerly = true}); }),
            "compile() was given run_eagerly under the strategy 'ps': its workers run captured "
            "graphs, not the code of this program. Debug the model with the default strategy");
}

TEST_F(ModelClusterTest, NeedsStepsPerEpochForDatasets) {
  Model model(nn::Linear(1, 1), strategy_);
  model.compile({.loss = nn::MSELoss()});
  const Dataset data = Dataset::from_tensors({torch::ones({4, 1}), torch::ones({4, 1})}).batch(2);
  const std::string expected =
      "fit() needs steps_per_epoch: under this strategy each worker draws from its own dataset, so "
      "the length of an epoch does not follow from the data. Set it in the options of fit(), or "
      "give the data as tensors";
  EXPECT_EQ(error_text([&] { model.fit(data); }), expected);
  const DatasetCreator creator([=](const InputContext&) { return data; });
  EXPECT_EQ(error_text([&] { model.fit(creator); }), expected);
  EXPECT_EQ(error_text([&] { model.evaluate(creator); }),
            "an evaluation of the data of a function needs steps: under this strategy each worker "
            "draws from its own dataset. Set it, or give a dataset or tensors, of which each "
            "example is used once");
}

TEST_F(ModelClusterTest, EndsWithTheErrorOfAStep) {
  Model model(nn::Embedding(10, 1), strategy_);
  model.compile({.loss = nn::MSELoss()});
  const Tensor ids = torch::arange(20);
  EXPECT_THAT(error_text([&] {
                model.fit(ids, torch::ones({20, 1}), {.verbose = Verbose::kSilent});
              }),
              testing::HasSubstr("does not exist; it has 10 rows"));
  // The next fit() works.
  model.fit(ids % 10, torch::ones({20, 1}), {.verbose = Verbose::kSilent});
}

}  // namespace
}  // namespace trireme
