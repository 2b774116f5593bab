#include "trireme/model/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using testing::HasSubstr;
using torch::Tensor;

// Expects that the loss is what the module returns, and the mean over the examples of what it
// returns for each of them.
void expect_mean_of_examples(const Loss& loss, const Tensor& output, const Tensor& target,
                             const Tensor& expected) {
  EXPECT_TRUE(torch::equal(loss(output, target), expected));
  const Tensor each = loss.per_example(output, target);
  ASSERT_EQ(each.sizes(), torch::IntArrayRef({output.size(0)}));
  EXPECT_TRUE(torch::allclose(each.mean(), expected)) << each << expected;
  for (int64_t i = 0; i < output.size(0); ++i) {
    EXPECT_TRUE(
        torch::allclose(each[i], loss(output.slice(0, i, i + 1), target.slice(0, i, i + 1))));
  }
}

TEST(Loss, OfTorchModulesHasTheLossOfEachExample) {
  torch::manual_seed(3);
  const Tensor output = torch::randn({6, 5}), target = torch::rand({6, 5});
  const Tensor classes = torch::tensor({0, 4, 2, 2, 1, 3});
  nn::CrossEntropyLoss cross_entropy;
  expect_mean_of_examples(cross_entropy, output, classes, cross_entropy(output, classes));
  // Targets for each pixel.
  expect_mean_of_examples(cross_entropy, output.reshape({2, 5, 3}), classes.reshape({2, 3}),
                          cross_entropy(output.reshape({2, 5, 3}), classes.reshape({2, 3})));
  nn::MSELoss mse;
  expect_mean_of_examples(mse, output, target, mse(output, target));
  nn::BCEWithLogitsLoss bce;
  expect_mean_of_examples(bce, output, target, bce(output, target));
  nn::L1Loss l1;
  expect_mean_of_examples(l1, output, target, l1(output, target));
  nn::HuberLoss huber;
  expect_mean_of_examples(huber, output, target, huber(output, target));
  nn::KLDivLoss divergence(nn::KLDivLossOptions().reduction(torch::kBatchMean));
  const Tensor log_probabilities = output.log_softmax(1);
  expect_mean_of_examples(divergence, log_probabilities, target,
                          divergence(log_probabilities, target));
  nn::NLLLoss likelihood;
  expect_mean_of_examples(likelihood, log_probabilities, classes,
                          likelihood(log_probabilities, classes));
}

TEST(Loss, LeavesTheModuleAsItWas) {
  nn::MSELoss mse;
  const Loss loss = mse;
  loss.per_example(torch::ones({3}), torch::zeros({3}));
  EXPECT_EQ(mse->options.reduction().index(), nn::MSELossOptions().reduction().index());
  EXPECT_EQ(loss(torch::ones({3}), torch::zeros({3})).dim(), 0);
}

TEST(Loss, KeepsTheOptionsOfTheModule) {
  const Tensor weight = torch::tensor({1.0, 10.0});
  const Loss loss = nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().weight(weight));
  const Tensor each = loss.per_example(torch::zeros({2, 2}), torch::tensor({0, 1}));
  EXPECT_TRUE(torch::allclose(each[1], each[0] * 10));
}

struct OwnLossImpl : nn::Module {
  Tensor forward(const Tensor& output, const Tensor& target) {
    return (output - target).abs().mean();
  }
};
TORCH_MODULE(OwnLoss);

TEST(Loss, IsMadeOfFunctionsAndModulesOfOnesOwn) {
  const Tensor output = torch::tensor({{1.0, 3.0}, {5.0, 5.0}}), target = torch::ones({2, 2});
  const Loss each = [](const Tensor& o, const Tensor& t) { return (o - t).square().mean(1); };
  EXPECT_TRUE(torch::equal(each.per_example(output, target), torch::tensor({2.0, 16.0})));
  const Loss own = OwnLoss(), shared = std::make_shared<OwnLossImpl>();
  EXPECT_EQ(own(output, target).item<double>(), 2.5);
  EXPECT_EQ(own.per_example(output, target).item<double>(), 2.5);
  EXPECT_EQ(shared(output, target).item<double>(), 2.5);
  const Loss function = [](Tensor o, Tensor t) { return at::mse_loss(o, t); };
  EXPECT_EQ(function(output, target).item<double>(), 9.0);
  EXPECT_TRUE(Loss().empty());
  EXPECT_FALSE(function.empty());
}

TEST(Loss, RejectsASumOverTheBatchAndAnEmptyHolder) {
  EXPECT_THAT(error_text([] { Loss{nn::MSELoss(nn::MSELossOptions(torch::kSum))}; }),
              HasSubstr("reduction torch::kSum"));
  EXPECT_THAT(error_text([] { Loss(nn::MSELoss(nullptr)); }),
              HasSubstr("a holder without a module"));
}

}  // namespace
}  // namespace trireme
