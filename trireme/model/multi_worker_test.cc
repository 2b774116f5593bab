// Models that workers train together, as threads of one process, each with a server of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "trireme/model/model.h"
#include "trireme/testing/mirrored_training.h"
#include "trireme/testing/worker_threads.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using torch::Tensor;

const MultiWorkerMirroredStrategyOptions kPatient{.lease = seconds(10),
                                                  .connect_timeout = seconds(60)};

// A net that uses a layer in three places, as recurrent cells and tied embeddings do. The gradient
// of the layer is the sum of three parts, the last of which is made at the end of backward.
struct SharedLayerNetImpl : nn::Module {
  SharedLayerNetImpl() {
    register_module("shared", shared);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 3; ++i) y = torch::tanh(shared(y));
    return last(y);
  }
  nn::Linear shared{128, 128};
  nn::Linear last{128, 3};
};
TORCH_MODULE(SharedLayerNet);

TEST(MultiWorkerModel, MadeInTheScopeTrainsWithTheOthers) {
  const WorkerThreads workers(2);
  std::vector<Tensor> weights(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, kPatient);
    const auto scope = strategy.scope();
    Model model(nn::Linear(4, 1));
    EXPECT_EQ(model.strategy().num_replicas_in_sync(), 2);
    model.compile({.optimizer = Sgd({.lr = 0.05}), .loss = nn::MSELoss()});
    const Tensor x = torch::full({64, 4}, 1.0 + me.task->index);
    model.fit(x, x.sum(1, true), {.batch_size = 16, .epochs = 2, .verbose = Verbose::kSilent});
    weights[me.task->index] = model.net()->weight.detach().clone();
  }),
              Each(""));
  EXPECT_TRUE(torch::equal(weights[0], weights[1])) << "each worker has trained alone";
}

class MultiWorkerModelTest : public testing::TestWithParam<int> {
 protected:
  // Trains a net on all workers, and returns the distance of the worst from one process.
  template <typename Net>
  static double distance() {
    const auto expected = train_for_50_steps<Net>(Strategy(), torch::kDouble);
    const WorkerThreads workers(GetParam());
    std::vector<std::vector<Tensor>> trained(GetParam());
    EXPECT_THAT(workers.run([&](const Cluster& me) {
      trained[me.task->index] =
          train_for_50_steps<Net>(MultiWorkerMirroredStrategy(me, kPatient), torch::kDouble);
    }),
                Each(""));
    double largest = 0;
    for (const auto& of_worker : trained) {
      largest = std::max(largest, largest_distance(of_worker, expected));
    }
    return largest;
  }
};

INSTANTIATE_TEST_SUITE_P(Workers, MultiWorkerModelTest, testing::Values(2, 3));

TEST_P(MultiWorkerModelTest, TrainsAConvNetToTheWeightsOfOneProcess) {
  EXPECT_LE(distance<ConvNet>(), 1e-9);
}

TEST_P(MultiWorkerModelTest, TrainsATransformerLayerToTheWeightsOfOneProcess) {
  EXPECT_LE(distance<TransformerNet>(), 1e-9);
}

TEST_P(MultiWorkerModelTest, TrainsALayerThatIsUsedSeveralTimesToTheWeightsOfOneProcess) {
  EXPECT_LE(distance<SharedLayerNet>(), 1e-9);
}

// The last batch has 3 examples, of which the workers get 2 and 1.
TEST(MultiWorkerModel, EachBatchOfADatasetIsDividedAmongTheWorkers) {
  const auto train = [](const Strategy& strategy) {
    nn::Linear net(nn::LinearOptions(7, 1).bias(false));
    net->to(torch::kDouble);
    torch::nn::init::ones_(net->weight);
    Model model(net, strategy);
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
    int64_t steps = 0;
    model.fit(
        Dataset::from_tensors({torch::eye(7, torch::kDouble), torch::zeros({7, 1}, torch::kDouble)})
            .batch(4),
        {.epochs = 3,
         .callbacks = {on_epoch_end([&](Fit& fit, const Logs&) { steps = fit.step(); })},
         .verbose = Verbose::kSilent});
    EXPECT_EQ(steps, 6);
    return net->weight.detach().clone();
  };
  const Tensor expected = train(Strategy());
  const WorkerThreads workers(2);
  std::vector<Tensor> weights(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    weights[me.task->index] = train(MultiWorkerMirroredStrategy(me, kPatient));
  }),
              Each(""));
  for (const Tensor& weight : weights) {
    EXPECT_TRUE(weight.allclose(expected, 1e-12, 1e-12)) << weight << expected;
  }
}

// A step takes two of the five batches. The last one is put back, and is not used in the next
// epoch.
TEST(MultiWorkerModel, ABatchThatIsLeftOverEndsWithItsEpoch) {
  using Steps = std::vector<int64_t>;
  const auto train = [](const Strategy& strategy, Steps& steps) {
    nn::Linear net(nn::LinearOptions(20, 1).bias(false));
    net->to(torch::kDouble);
    nn::init::ones_(net->weight);
    Model model(net, strategy);
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss(), .accumulate_steps = 2});
    model.fit(
        Dataset::from_tensors(
            {torch::eye(20, torch::kDouble) + 0.1, torch::arange(20, torch::kDouble).view({20, 1})})
            .batch(4),
        {.epochs = 3,
         .callbacks = {on_epoch_end([&](Fit& fit, const Logs&) { steps.push_back(fit.step()); })},
         .verbose = Verbose::kSilent});
    return net->weight.detach().clone();
  };
  Steps steps;
  const Tensor expected = train(Strategy(), steps);
  EXPECT_EQ(steps, (Steps{2, 4, 6}));
  const WorkerThreads workers(2);
  std::vector<Tensor> weights(2);
  std::vector<Steps> worker_steps(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const int worker = me.task->index;
    weights[worker] = train(MultiWorkerMirroredStrategy(me, kPatient), worker_steps[worker]);
  }),
              Each(""));
  EXPECT_THAT(worker_steps, Each(steps));
  for (const Tensor& weight : weights) EXPECT_LE(relative_distance(weight, expected), 1e-12);
}

// Worker 1 shuffles with another seed, as it does after set_seed() with another number. Each
// example has a weight of its own, which changes once in each epoch in which the example is used.
TEST(MultiWorkerModel, EachExampleIsUsedOnceIfTheSeedsOfTheWorkersDiffer) {
  const auto train = [](const Strategy& strategy, uint64_t seed, double& loss) {
    nn::Linear net(nn::LinearOptions(20, 1).bias(false));
    net->to(torch::kDouble);
    nn::init::ones_(net->weight);
    Model model(net, strategy);
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
    const Dataset batches = Dataset::from_tensors({torch::eye(20, torch::kDouble),
                                                   torch::arange(20, torch::kDouble).view({20, 1})})
                                .shuffle(20, {.seed = seed})
                                .batch(4);
    model.fit(batches, {.epochs = 2, .verbose = Verbose::kSilent});
    loss = model.evaluate(batches, {.verbose = Verbose::kSilent})["loss"];
    return net->weight.detach().clone();
  };
  double loss = 0;
  const Tensor expected = train(Strategy(), 1, loss);
  const WorkerThreads workers(2);
  std::vector<Tensor> weights(2);
  std::vector<double> losses(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const int worker = me.task->index;
    weights[worker] = train(MultiWorkerMirroredStrategy(me, kPatient), 1 + worker, losses[worker]);
  }),
              Each(""));
  for (const Tensor& weight : weights) {
    EXPECT_LE(relative_distance(weight, expected), 1e-12) << weight << expected;
  }
  EXPECT_THAT(losses, Each(testing::DoubleNear(loss, 1e-5 * loss)));
}

// The workers need not have the same number of seeds.
TEST(MultiWorkerModel, ADatasetFunctionMayShuffleOnOneWorkerOnly) {
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    Model model(nn::Linear(3, 1), MultiWorkerMirroredStrategy(me, kPatient));
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
    const DatasetCreator data([](const InputContext& context) {
      const Dataset all = Dataset::from_tensors({torch::ones({8, 3}), torch::ones({8, 1})});
      return (context.input_pipeline_id == 0 ? all.shuffle(8) : all).shard(context).batch(2);
    });
    const History history = model.fit(data, {.epochs = 1, .verbose = Verbose::kSilent});
    EXPECT_EQ(history["loss"].size(), 1u);
  }),
              Each(""));
}

TEST(MultiWorkerModel, WorkersShareTheElementsOfADistributedDataset) {
  const WorkerThreads workers(2);
  std::vector<Tensor> seen(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const Strategy strategy = MultiWorkerMirroredStrategy(me, kPatient);
    const auto creator = strategy.distribute_dataset(Dataset::range(8).batch(4));
    Iterator own =
        creator.make({.num_input_pipelines = 2, .input_pipeline_id = me.task->index}).iterator();
    seen[me.task->index] = torch::cat({own.next<1>()[0], own.next<1>()[0]});
  }),
              Each(""));
  EXPECT_TRUE(std::get<0>(torch::cat(seen).sort()).equal(torch::arange(8))) << seen[0] << seen[1];
}

// The workers have 4, 2 and 1 batches in an epoch. Those that have no more take part without data.
TEST(MultiWorkerModel, UnevenDataEndsOnAllWorkersTogether) {
  const WorkerThreads workers(3);
  std::vector<int64_t> steps(3);
  std::vector<Tensor> weights(3);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const int worker = me.task->index;
    nn::Linear net(nn::LinearOptions(3, 1).bias(false));
    net->to(torch::kDouble);
    Model model(net, MultiWorkerMirroredStrategy(me, kPatient));
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
    const DatasetCreator data([](const InputContext& context) {
      const int64_t rows = 8 >> context.input_pipeline_id;
      return Dataset::from_tensors(
                 {torch::ones({rows, 3}, torch::kDouble), torch::ones({rows, 1}, torch::kDouble)})
          .batch(2);
    });
    model.fit(
        data,
        {.epochs = 2,
         .callbacks = {on_epoch_end([&](Fit& fit, const Logs&) { steps[worker] = fit.step(); })},
         .verbose = Verbose::kSilent});
    weights[worker] = net->weight.detach().clone();
  }),
              Each(""));
  EXPECT_THAT(steps, Each(8));
  for (const Tensor& weight : weights) EXPECT_TRUE(weight.equal(weights[0]));
  EXPECT_TRUE(weights[0].isfinite().all().item<bool>());
}

// As after a restore in the middle of an epoch, when the data of one worker has ended already.
TEST(MultiWorkerModel, AWorkerWithoutDataTakesPart) {
  const auto train = [](const Strategy& strategy, int worker) {
    nn::Linear net(nn::LinearOptions(3, 1).bias(false));
    net->to(torch::kDouble);
    nn::init::ones_(net->weight);
    Model model(net, strategy);
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
    const int64_t rows = worker == 0 ? 6 : 0;
    const Dataset data = Dataset::from_tensors({torch::ones({rows, 3}, torch::kDouble),
                                                torch::ones({rows, 1}, torch::kDouble)})
                             .batch(2);
    model.fit(DatasetCreator([&](const InputContext&) { return data; }),
              {.epochs = 2, .verbose = Verbose::kSilent});
    return net->weight.detach().clone();
  };
  const WorkerThreads workers(2);
  std::vector<Tensor> weights(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    weights[me.task->index] = train(MultiWorkerMirroredStrategy(me, kPatient), me.task->index);
  }),
              Each(""));
  const Tensor expected = train(Strategy(), 0);
  for (const Tensor& weight : weights) {
    EXPECT_LE(relative_distance(weight, expected), 1e-12) << weight << expected;
  }
}

TEST(MultiWorkerModel, AnErrorInTheDatasetFunctionOfOneWorkerEndsTheFitOfAll) {
  const WorkerThreads workers(2);
  const auto errors = workers.run([&](const Cluster& me) {
    Model model(nn::Linear(3, 1), MultiWorkerMirroredStrategy(me, kPatient));
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
    const DatasetCreator data([](const InputContext& context) {
      if (context.input_pipeline_id == 1) throw Error(ErrorCode::kNotFound, "no file of the test");
      return Dataset::from_tensors({torch::ones({4, 3}), torch::ones({4, 1})}).batch(2);
    });
    model.fit(data, {.epochs = 1, .verbose = Verbose::kSilent});
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("the dataset function of worker 1"),
                               HasSubstr("no file of the test")));
  EXPECT_THAT(errors[1], HasSubstr("no file of the test"));
}

// The statistics of batch norm are the means over the workers.
TEST(MultiWorkerModel, StatisticsOfBatchNormAreTheMeansOfTheWorkers) {
  const WorkerThreads workers(2);
  std::vector<Tensor> means(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    nn::Sequential net(nn::BatchNorm1d(2), nn::Linear(2, 1));
    Model model(net, MultiWorkerMirroredStrategy(me, kPatient));
    model.compile({.optimizer = Sgd({.lr = 0}), .loss = nn::MSELoss()});
    // Worker 0 gets the first half of the batch, worker 1 the second.
    const Tensor x = torch::cat({torch::zeros({4, 2}), torch::ones({4, 2})});
    model.fit(x, torch::zeros({8, 1}),
              {.batch_size = 8, .epochs = 1, .shuffle = false, .verbose = Verbose::kSilent});
    means[me.task->index] = net[0]->buffers()[0].clone();
  }),
              Each(""));
  for (const Tensor& mean : means) {
    EXPECT_TRUE(mean.allclose(torch::full({2}, 0.05))) << mean;  // momentum 0.1, means 0 and 1
  }
}

}  // namespace
}  // namespace trireme
