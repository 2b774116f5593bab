// Strategies that train on the devices of one machine, here on its logical CPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "trireme/capture/device_scope.h"
#include "trireme/distribute/strategy.h"
#include "trireme/function/function.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/relative_distance.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;
using Parts = PerReplica<Tensor>;

const MirroredStrategyOptions kTwo{.devices = {"/cpu:0", "/cpu:1"}};

TEST(Mirrored, TakesTheCpuIfThereIsNoGpu) {
  const MirroredStrategy strategy;
  EXPECT_EQ(strategy.name(), "mirrored");
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  const auto scope = strategy.scope();
  EXPECT_THAT(Variable("w", torch::ones({2})).shards(), ElementsAre("/cpu:0"));
  EXPECT_EQ(current_strategy().name(), "mirrored");
}

TEST(Mirrored, HasOneReplicaForEachDevice) {
  const MirroredStrategy strategy(kTwo);
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
  const auto scope = strategy.scope();
  EXPECT_THAT(Variable("w", torch::ones({2})).shards(), ElementsAre("/cpu:0", "/cpu:1"));
  const CentralStorageStrategy central({.compute_devices = {"cpu:0", "cpu:1", "cpu:2"}});
  EXPECT_EQ(central.num_replicas_in_sync(), 3);
  const auto inner = central.scope();
  EXPECT_THAT(Variable("v", torch::ones({2})).shards(), ElementsAre("/cpu:0"));
}

TEST(Mirrored, RejectsDevicesThatItCannotUse) {
  const auto message = [](std::vector<std::string> devices) {
    return error_of([&] { MirroredStrategy({.devices = devices}); }).message();
  };
  EXPECT_EQ(message({"/cpu:0", "/cpu:0"}),
            "device '/cpu:0' is named twice in .devices; each replica needs a device of its own");
  EXPECT_EQ(message({"/gpu:0"}),
            "device '/gpu:0' in .devices does not exist: LibTorch finds no GPU on this machine. "
            "Name CPUs, '/cpu:0' and '/cpu:1' for two replicas");
  EXPECT_EQ(message({"/job:worker/task:1/cpu:0"}),
            "device '/job:worker/task:1/cpu:0' in .devices is on another task; this strategy "
            "trains on the devices of its own machine, such as '/gpu:0'");
  EXPECT_EQ(message({"/cpu"}),
            "device '/cpu' in .devices has no type and number, such as '/gpu:0' or '/cpu:1'");
}

TEST(Mirrored, AVariableInTheScopeOfATaskIsAnError) {
  const MirroredStrategy strategy(kTwo);
  const auto scope = strategy.scope();
  const DeviceScope on("/job:ps/task:0");
  EXPECT_EQ(error_of([] { Variable("w", torch::ones({2})); }).message(),
            "it is made in the scope of device '/job:ps/task:0', but inside of the strategy's "
            "scope, which puts variables on /cpu:0, /cpu:1 of this program; leave one of the two "
            "scopes");
}

TEST(Mirrored, AFunctionUsesVariablesOfOneStrategy) {
  const MirroredStrategy first(kTwo), second(kTwo);
  std::vector<Variable> variables;
  for (const Strategy& strategy : {Strategy(first), Strategy(second)}) {
    const auto scope = strategy.scope();
    variables.emplace_back("w", torch::ones({2}));
  }
  const auto sum = function("sum", [&] { return variables[0].read() + variables[1].read(); });
  EXPECT_THAT(error_of([&] { sum(); }).message(),
              AllOf(HasSubstr("it uses variables of two strategies"),
                    HasSubstr("on /cpu:0, /cpu:1 among them")));
}

TEST(Mirrored, ThereAreNoTpus) {
  const std::string why =
      "there is no strategy for TPUs: LibTorch's C++ library, on which Trireme is built, cannot "
      "reach one; the strategies are 'ps', 'multi_worker_mirrored', 'mirrored', 'central_storage' "
      "and 'default'";
  EXPECT_EQ(error_of([] { TpuStrategy(); }).message(), why);
  EXPECT_EQ(error_of([] { make_strategy(Cluster(), "tpu"); }).message(), why);
}

TEST(Mirrored, RunsReducesAndGathersInAStep) {
  const MirroredStrategy strategy(kTwo);
  const auto scope = strategy.scope();
  const Variable w("w", torch::full({2}, 3.0), {.aggregation = Aggregation::kMean});
  const auto step = function("step", [&](const Parts& x) {
    const Parts products = strategy.run(
        [&](const Tensor& mine) {
          const Tensor product = w.read() * mine;
          w.assign(product * (replica_id() + 1));
          return product;
        },
        x);
    return std::vector<Tensor>{strategy.reduce(ReduceOp::kSum, products),
                               strategy.gather(products)};
  });
  const std::vector<Tensor> results = step(Parts({torch::ones({2}), torch::full({2}, 2.0)}));
  EXPECT_TRUE(torch::equal(results[0], torch::full({2}, 9.0)));
  EXPECT_TRUE(torch::equal(results[1], torch::tensor({3.0, 3.0, 6.0, 6.0}).to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(w.read(), torch::full({2}, 7.5)));  // the mean of 3 and 12
}

// Each replica normalizes by the statistics of its own part. The running statistics become the mean
// of what the replicas made of them, and the count of batches is that of one replica.
TEST(Mirrored, BatchNormAveragesTheStatisticsOfTheReplicas) {
  torch::manual_seed(1);  // A mean close to zero would be rounded by more than allclose() permits.
  const MirroredStrategy strategy(kTwo);
  nn::BatchNorm1d net = strategy.distribute<nn::BatchNorm1d>(3);
  const auto step = function("step", [&](const Parts& x) {
    return strategy.run([&](const Tensor& mine) { return net->forward(mine); }, x);
  });
  const Parts x({torch::randn({6, 3}), torch::randn({4, 3}) * 3 + 1});
  const Parts y = step(x);
  Tensor mean = torch::zeros({3}), variance = torch::zeros({3});
  for (int i : {0, 1}) {
    nn::BatchNorm1d own(3);
    EXPECT_TRUE(torch::allclose(y[i], own->forward(x[i])));
    mean += own->running_mean / 2;
    variance += own->running_var / 2;
  }
  EXPECT_TRUE(torch::allclose(net->running_mean, mean));
  EXPECT_TRUE(torch::allclose(net->running_var, variance));
  EXPECT_EQ(net->num_batches_tracked.item<int64_t>(), 1);
}

// A replica that writes to a variable has a copy of it. A capture records equal views once, so that
// the views of the replicas are those of the first one, or of the program.
TEST(Mirrored, ViewsShowTheCopyOfTheReplicaThatWrites) {
  const MirroredStrategy strategy(kTwo);
  const auto scope = strategy.scope();
  const Variable w("w", torch::zeros({2, 3}), VariableOptions{.trainable = false});
  const auto rows = [&](double first, double second) {
    return torch::tensor({first, second}).to(torch::kFloat).unsqueeze(1).expand({2, 3});
  };
  function("inside", [&] { strategy.run([&] { w.read()[0].add_(1 + replica_id()); }); })();
  EXPECT_TRUE(torch::equal(w.read(), rows(1.5, 0))) << w.read();
  function("outside", [&] {
    const Tensor row = w.read().unbind()[1].slice(0, 0, 3);
    strategy.run([&] { row.add_(1 + replica_id()); });
  })();
  EXPECT_TRUE(torch::equal(w.read(), rows(1.5, 1.5))) << w.read();
  const Parts seen = function("reads", [&] {
    const Tensor row = w.read()[0];
    return strategy.run([&] {
      w.read().add_(1 + replica_id());
      return row * 2;
    });
  })();
  EXPECT_TRUE(torch::equal(seen[0], torch::full({3}, 5.0f))) << seen[0];
  EXPECT_TRUE(torch::equal(seen[1], torch::full({3}, 7.0f))) << seen[1];
  EXPECT_TRUE(torch::equal(w.read(), rows(3, 3))) << w.read();
}

TEST(Mirrored, RejectsTheScopeOfAStrategyInAReplica) {
  const MirroredStrategy strategy(kTwo);
  for (const Strategy& opened : {Strategy(strategy), Strategy()}) {
    const auto step = [&] { strategy.run([&] { const auto scope = opened.scope(); }); };
    EXPECT_THAT(error_of(step).message(), HasSubstr("open it outside of run()"));
    EXPECT_THAT(error_of([&] { function("step", step)(); }).message(),
                HasSubstr("open it outside of run()"));
  }
  EXPECT_EQ(current_strategy().name(), "default");
}

TEST(Mirrored, ReplicasDrawDifferentNumbersThatRepeat) {
  const MirroredStrategy strategy(kTwo);
  const auto scope = strategy.scope();
  const Variable w("w", torch::zeros({4}));
  const auto draw = [&] {
    const auto step =
        function("step",
                 [&](const Parts& x) {
                   return strategy.run(
                       [&](const Tensor& mine) { return torch::rand_like(mine) + w.read(); }, x);
                 },
                 {.seed = 7});
    return step(Parts({torch::zeros({4}), torch::zeros({4})}));
  };
  const Parts first = draw(), again = draw();
  EXPECT_FALSE(torch::equal(first[0], first[1]));
  EXPECT_TRUE(torch::equal(first[0], again[0]));
  EXPECT_TRUE(torch::equal(first[1], again[1]));
}

}  // namespace
}  // namespace trireme
