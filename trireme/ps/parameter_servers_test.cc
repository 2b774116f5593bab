// Tests captured functions whose variables live on parameter servers.
#include "trireme/ps/parameter_servers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "trireme/function/function.h"
#include "trireme/function/module.h"
#include "trireme/function/replicas.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/test_servers.h"
#include "trireme/testing/relative_distance.h"

namespace trireme {
namespace {

using torch::Tensor;

class ParameterServersTest : public testing::Test {
 protected:
  explicit ParameterServersTest(ParameterServersOptions options = {})
      : servers_(cluster_.spec(), options) {}

  uint64_t pulls() const { return cluster_.calls("Pull"); }
  uint64_t pushes() const { return cluster_.calls("Push"); }

  TestServers cluster_{2};
  ParameterServers servers_;
};

TEST_F(ParameterServersTest, VariablesAreReadAndChangedOutsideFunctions) {
  auto scope = servers_.scope();
  const Variable v("v", torch::tensor({1.0, 2.0, 3.0})), w("w", torch::zeros({2}, torch::kInt64));
  EXPECT_EQ(v.device(), "/job:ps/task:0");
  EXPECT_EQ(w.device(), "/job:ps/task:1");
  v.assign_add(torch::ones({3}));
  v.assign_sub(torch::full({3}, 0.5));
  EXPECT_TRUE(v.read().equal(torch::tensor({1.5, 2.5, 3.5})));
  w.assign(torch::tensor({4, 5}));
  EXPECT_TRUE(w.read().equal(torch::tensor({4, 5})));
  EXPECT_THROW(v.assign(torch::ones({4})), Error);
}

TEST_F(ParameterServersTest, AStepMakesOnePullAndOnePushPerServer) {
  auto scope = servers_.scope();
  std::vector<Variable> variables;
  for (int i = 0; i < 20; ++i) variables.emplace_back("v", torch::full({3}, 1.0 * i));
  const auto step = function("step", [&](const Tensor& x) {
    Tensor sum = torch::zeros({3});
    for (const Variable& v : variables) {
      sum = sum + v.read();
      v.assign_add(x);
    }
    return sum;
  });
  EXPECT_TRUE(step(torch::ones({3})).equal(torch::full({3}, 190.0)));
  const uint64_t pulls_before = pulls(), pushes_before = pushes();
  EXPECT_TRUE(step(torch::ones({3})).equal(torch::full({3}, 210.0)));
  EXPECT_EQ(pulls() - pulls_before, 2u);
  EXPECT_EQ(pushes() - pushes_before, 2u);
  EXPECT_TRUE(variables[7].read().equal(torch::full({3}, 9.0)));
}

TEST_F(ParameterServersTest, DoesNotPullVariablesThatAreOnlyWritten) {
  auto scope = servers_.scope();
  const Variable sum("sum", torch::zeros({}, torch::kInt64)), last("last", torch::zeros({2}));
  const auto step = function("step", [&](const Tensor& x) {
    sum.assign_add(x);
    sum.assign_sub(x * 3);
    last.assign(x.to(torch::kFloat).expand({2}) + 1);
  });
  const uint64_t before = pulls();
  for (int i = 0; i < 5; ++i) step(torch::tensor(i));
  EXPECT_EQ(pulls(), before);
  EXPECT_EQ(sum.read().item<int64_t>(), -20);
  EXPECT_TRUE(last.read().equal(torch::tensor({5.0f, 5.0f})));
}

TEST_F(ParameterServersTest, AReadAfterAChangeSeesTheChange) {
  auto scope = servers_.scope();
  const Variable a("a", torch::zeros({2})), b("b", torch::ones({2}));
  const auto step = function("step", [&](const Tensor& x) {
    a.assign_add(x);
    const Tensor seen = a.read() * 2;
    b.assign(b.read() * 3);
    return std::make_pair(seen, b.read() + 1);
  });
  auto [seen, next] = step(torch::ones({2}));
  EXPECT_TRUE(seen.equal(torch::full({2}, 2.0)));
  EXPECT_TRUE(next.equal(torch::full({2}, 4.0)));
  std::tie(seen, next) = step(torch::ones({2}));
  EXPECT_TRUE(seen.equal(torch::full({2}, 4.0)));
  EXPECT_TRUE(next.equal(torch::full({2}, 10.0)));
  EXPECT_TRUE(a.read().equal(torch::full({2}, 2.0)));
  EXPECT_TRUE(b.read().equal(torch::full({2}, 9.0)));
}

TEST_F(ParameterServersTest, PushesTheValueAtTheTimeOfTheUpdate) {
  auto scope = servers_.scope();
  const Variable v("v", torch::zeros({2}));
  const auto step = function("step", [&](const Tensor& x) {
    Tensor change = x * 1;
    v.assign_add(change);
    change.add_(100);
    return change;
  });
  EXPECT_TRUE(step(torch::ones({2})).equal(torch::full({2}, 101.0)));
  EXPECT_TRUE(v.read().equal(torch::ones({2})));
}

TEST_F(ParameterServersTest, AVariableMadeOutsideTheScopeStaysInTheProgram) {
  const Variable mine("mine", torch::zeros({}));
  auto scope = servers_.scope();
  const Variable theirs("theirs", torch::ones({}));
  const auto step = function("step", [&] { mine.assign_add(theirs.read() * 2); });
  step();
  step();
  EXPECT_EQ(mine.read().item<float>(), 4);
  EXPECT_EQ(mine.device(), "");
}

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    second = register_module("second", torch::nn::Linear(16, 3));
  }
  Tensor forward(const Tensor& x) { return second(torch::relu(norm(first(x)))); }

  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

// Trains a net on the servers and one in the program for twenty steps, from the same start, and
// compares them.
template <typename Optimizer, typename Options>
void expect_same_training(const ParameterServers& servers, const Options& options) {
  auto here = std::make_shared<Net>(), there = std::make_shared<Net>();
  {
    const torch::NoGradGuard no_gradients;
    for (size_t i = 0; i < here->parameters().size(); ++i) {
      there->parameters()[i].copy_(here->parameters()[i]);
    }
  }
  const Optimizer local(here, options);
  std::optional<Optimizer> remote;
  {
    auto scope = servers.scope();
    remote.emplace(there, options);
  }
  const auto step_of = [](std::shared_ptr<Net> net, trireme::Optimizer optimizer) {
    return function("step", [net, optimizer](const Tensor& x, const Tensor& y) {
      const Tensor loss = torch::cross_entropy_loss(net->forward(x), y);
      optimizer.minimize(loss);
      return loss;
    });
  };
  const auto local_step = step_of(here, local), remote_step = step_of(there, *remote);
  torch::manual_seed(3);
  for (int i = 0; i < 20; ++i) {
    const Tensor x = torch::randn({8, 6}), y = torch::randint(3, {8});
    const Tensor local_loss = local_step(x, y), remote_loss = remote_step(x, y);
    EXPECT_LT(relative_distance(remote_loss, local_loss), 1e-4);
  }
  const auto mine = track(here), theirs = track(there);
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].read().is_floating_point()) {
      EXPECT_LT(relative_distance(theirs[i].read(), mine[i].read()), 1e-4) << mine[i].name();
    } else {
      EXPECT_TRUE(theirs[i].read().equal(mine[i].read())) << mine[i].name();
    }
  }
}

TEST_F(ParameterServersTest, TrainsANetAsInTheProgram) {
  expect_same_training<Sgd>(servers_, SgdOptions{.lr = 0.1, .momentum = 0.9});
  expect_same_training<Adam>(servers_, AdamOptions{.lr = 0.01});
}

class ShardedParameterServersTest : public ParameterServersTest {
 protected:
  ShardedParameterServersTest()
      : ParameterServersTest(
            {.partitioner = FixedPartitioner(2), .placement = Placement::kBalanced}) {}
};

TEST_F(ShardedParameterServersTest, TrainsANetAsInTheProgram) {
  expect_same_training<Adagrad>(servers_, AdagradOptions{.lr = 0.1});
}

TEST_F(ShardedParameterServersTest, AShardedVariableIsReadWhole) {
  auto scope = servers_.scope();
  const Variable v("v", torch::arange(10).reshape({5, 2}));
  EXPECT_THAT(v.shards(), testing::UnorderedElementsAre("/job:ps/task:0", "/job:ps/task:1"));
  EXPECT_TRUE(v.read().equal(torch::arange(10).reshape({5, 2})));
}

TEST_F(ParameterServersTest, ANewLearningRateNeedsNoNewCapture) {
  auto scope = servers_.scope();
  const Variable v("v", torch::zeros({}));
  const Sgd optimizer({v}, {.lr = 1});
  const auto step = function("step", [&] { optimizer.minimize(v.read() * 1); });
  step();
  optimizer.set_lr(10);
  step();
  EXPECT_EQ(v.read().item<float>(), -11);
  EXPECT_EQ(step.captures(), 1);
}

TEST_F(ParameterServersTest, RejectsAReadAfterTheGradient) {
  auto scope = servers_.scope();
  const Variable v("weights", torch::zeros({}));
  const Sgd optimizer({v}, {.lr = 1});
  const auto step = function("step", [&] {
    optimizer.minimize(v.read() * 1);
    return v.read() + 1;
  });
  try {
    step();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("variable 'weights'"));
    EXPECT_THAT(error.what(),
                testing::HasSubstr("reads it after its optimizer was given a gradient"));
  }
}

class RowsTest : public ShardedParameterServersTest, public testing::WithParamInterface<bool> {};

TEST_P(RowsTest, AnEmbeddingIsPulledAndPushedByRows) {
  const bool sparse = GetParam();
  torch::manual_seed(1);
  const Tensor start = torch::randn({1000, 4});
  const auto options = torch::nn::EmbeddingOptions(1000, 4)
                           .padding_idx(sparse ? std::optional<int64_t>() : 0)
                           .sparse(sparse)
                           ._weight(start.clone());
  torch::nn::Embedding here(options),
      there(torch::nn::EmbeddingOptions(options)._weight(start.clone()));
  const Sgd local(here, {.lr = 0.5});
  std::optional<Sgd> remote;
  {
    auto scope = servers_.scope();
    remote.emplace(there, SgdOptions{.lr = 0.5});
  }
  const auto step_of = [](torch::nn::Embedding table, trireme::Optimizer optimizer) {
    return function("step", [table, optimizer](const Tensor& ids) mutable {
      const Tensor rows = table(ids + 1);
      optimizer.minimize(rows.pow(2).sum());
      return rows;
    });
  };
  const auto local_step = step_of(here, local), remote_step = step_of(there, *remote);
  for (int i = 0; i < 5; ++i) {
    const Tensor ids = torch::randint(0, 998, {3, 5}).index_fill_(0, torch::tensor({1}), -1 + i);
    EXPECT_LT(relative_distance(remote_step(ids), local_step(ids)), 1e-6);
  }
  EXPECT_LT(relative_distance(track(there)[0].read(), track(here)[0].read()), 1e-6);
}

TEST_P(RowsTest, TheSumOfReplicasIsPushedByRows) {
  const bool sparse = GetParam();
  const Tensor start = torch::randn({1000, 4});
  torch::nn::Embedding here(
      torch::nn::EmbeddingOptions(1000, 4).sparse(true)._weight(start.clone())),
      there(torch::nn::EmbeddingOptions(1000, 4).sparse(sparse)._weight(start.clone()));
  const Adam local(here, {.lr = 0.1});
  std::optional<Adam> remote;
  {
    auto scope = servers_.scope();
    remote.emplace(there, AdamOptions{.lr = 0.1});
  }
  const auto local_step =
      function("step", [&](const Tensor& ids) { local.minimize(here(ids).pow(2).sum()); });
  const auto remote_step = function("step", [&](const Tensor& ids) {
    internal::for_each_replica(
        3, [&](int replica) { remote->minimize(there(ids[replica] + 0).pow(2).sum()); });
  });
  // With a dense gradient, Adam's state would also move rows in later steps that do not use them.
  for (int i = 0; i < 5; ++i) {
    const Tensor ids = torch::randint(0, 1000, {3, 5});
    local_step(ids);
    remote_step(ids);
  }
  EXPECT_LT(relative_distance(track(there)[0].read(), track(here)[0].read()), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Gradients, RowsTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "sparse" : "dense"; });

TEST_F(ParameterServersTest, ConcurrentStepsLoseNoUpdate) {
  constexpr int kThreads = 4, kSteps = 50;
  std::vector<std::thread> threads;
  auto scope = servers_.scope();
  const Variable count("count", torch::zeros({100}, torch::kInt64));
  const auto step = function("step", [&](const Tensor& x) { count.assign_add(x); });
  step(torch::zeros({100}, torch::kInt64));
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kSteps; ++k) step(torch::ones({100}, torch::kInt64));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(count.read().equal(torch::full({100}, kThreads * kSteps)));
}

}  // namespace
}  // namespace trireme
