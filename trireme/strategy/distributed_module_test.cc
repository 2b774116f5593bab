// A module whose variables are on parameter servers is never stale: its tensors in the program
// cannot be used, and pull() and push() copy the values to and from an ordinary module.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "trireme/base/error.h"
#include "trireme/function/function.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/test_servers.h"
#include "trireme/strategy/parameter_server_strategy.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/libtorch_error.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

struct NormedNet : torch::nn::Module {
  explicit NormedNet(int outputs = 1) : last(4, outputs) {
    register_module("norm", norm);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) { return last->forward(norm->forward(x)); }
  torch::nn::BatchNorm1d norm{4};
  torch::nn::Linear last;
};

class DistributedModuleTest : public testing::Test {
 protected:
  // Trains for some steps and returns the loss of the last one.
  double train() {
    double loss = 0;
    for (int i = 0; i < 30; ++i) loss = step_(x_).item<double>();
    return loss;
  }

  TestServers cluster_{2};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec()), {.partitioner = FixedPartitioner(2)}};
  std::shared_ptr<NormedNet> net_ = strategy_.distribute<NormedNet>();
  Sgd optimizer_{net_, {.lr = 0.1}};
  Tensor x_ = torch::randn({8, 4});
  Function<Tensor(const Tensor&)> step_ = function("step", [this](const Tensor& x) {
    const Tensor loss = (net_->forward(x) - 3).pow(2).mean();
    optimizer_.minimize(loss);
    return loss;
  });
};

TEST_F(DistributedModuleTest, EveryUseInTheProgramThrows) {
  train();
  const auto expected =
      AllOf(HasSubstr("variable '"), HasSubstr("lives on /job:ps/task:"),
            HasSubstr("strategy.pull(module, local)"), HasSubstr("strategy.push(module, local)"));
  EXPECT_THAT(libtorch_error([&] { net_->forward(x_); }), expected);
  EXPECT_THAT(libtorch_error([&] { net_->last->weight.sum(); }), expected);
  EXPECT_THAT(libtorch_error([&] { net_->last->weight.data_ptr<float>(); }), expected);
  EXPECT_THAT(libtorch_error([&] {
                std::ostringstream file;
                torch::save(net_, file);
              }),
              expected);
  EXPECT_THAT(libtorch_error([&] {
                const torch::NoGradGuard no_gradients;
                net_->last->bias.zero_();
              }),
              expected);
  // Captured functions go on, also after another capture.
  const auto loss =
      function("loss", [&](const Tensor& x) { return (net_->forward(x) - 3).pow(2).mean(); });
  EXPECT_LT(loss(x_).item<double>(), 0.5);
}

TEST_F(DistributedModuleTest, WeightsCanBeLoadedBeforeTheFirstUse) {
  auto made = strategy_.distribute<NormedNet>();
  {
    const torch::NoGradGuard no_gradients;
    made->last->weight.fill_(2);
  }
  EXPECT_EQ(track(made->last)[0].read()[0][0].item<float>(), 2);
}

TEST_F(DistributedModuleTest, PullCopiesTheCurrentValues) {
  const double loss = train();
  auto local = std::make_shared<NormedNet>();
  strategy_.pull(net_, local);
  // The local module is in training mode too, so it normalises in the same way.
  const double pulled = (local->forward(x_) - 3).pow(2).mean().item<double>();
  EXPECT_LT(pulled, loss);
  EXPECT_GT(pulled, loss * 0.5);
  const auto parameters = local->named_parameters();
  const auto variables = track(net_);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i].value().detach(), variables[i].read()))
        << variables[i].name();
  }
}

TEST_F(DistributedModuleTest, PushReplacesTheValues) {
  train();
  auto local = std::make_shared<NormedNet>();
  {
    const torch::NoGradGuard no_gradients;
    for (Tensor& parameter : local->parameters()) parameter.fill_(0.5);
    local->norm->running_mean.fill_(7);
  }
  strategy_.push(net_, local);
  EXPECT_EQ(track(net_->last)[0].read()[0][0].item<float>(), 0.5);
  auto again = std::make_shared<NormedNet>();
  strategy_.pull(net_, again);
  EXPECT_TRUE(torch::equal(again->norm->running_mean, torch::full({4}, 7.0)));
}

// One tensor under two names.
struct TiedNet : torch::nn::Module {
  TiedNet() {
    first = register_parameter("first", torch::ones({2}));
    second = register_parameter("second", first);
  }
  Tensor first, second;
};

TEST_F(DistributedModuleTest, PushAndPullCopyTiedWeights) {
  auto tied = strategy_.distribute<TiedNet>();
  auto local = std::make_shared<TiedNet>();
  {
    const torch::NoGradGuard no_gradients;
    local->first.fill_(3);
  }
  strategy_.push(tied, local);
  auto again = std::make_shared<TiedNet>();
  strategy_.pull(tied, again);
  EXPECT_TRUE(torch::equal(again->second.detach(), torch::full({2}, 3.0)));
}

TEST_F(DistributedModuleTest, PullRejectsAnotherStructure) {
  EXPECT_THAT(error_of([&] { strategy_.pull(net_, std::make_shared<NormedNet>(2)); }).what(),
              AllOf(HasSubstr("'last.weight' is Float [1, 4]"), HasSubstr("Float [2, 4]")));
  EXPECT_THAT(error_of([&] { strategy_.pull(net_, torch::nn::Linear(4, 1)); }).what(),
              HasSubstr("local module"));
  EXPECT_THAT(error_of([&] { strategy_.pull(torch::nn::Linear(4, 1), net_); }).what(),
              HasSubstr("local module"));
}

TEST_F(DistributedModuleTest, RunEagerlySaysWhyItCannot) {
  train();
  run_eagerly(true);
  const std::string text = libtorch_error([&] { step_(x_); });
  run_eagerly(false);
  EXPECT_THAT(text, AllOf(HasSubstr("lives on /job:ps/task:"), HasSubstr("function 'step'"),
                          HasSubstr("tr::run_eagerly")));
}

TEST_F(DistributedModuleTest, CopiesAreRefusedInAFunction) {
  auto local = std::make_shared<NormedNet>();
  const auto pulls = function("pulls", [&](const Tensor& x) {
    strategy_.pull(net_, local);
    return x + 1;
  });
  EXPECT_THAT(error_text([&] { pulls(x_); }),
              AllOf(HasSubstr("function 'pulls'"), HasSubstr("strategy.pull()"),
                    HasSubstr("outside of the function")));
}

}  // namespace
}  // namespace trireme
