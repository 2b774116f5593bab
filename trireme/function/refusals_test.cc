// The messages of refused functions name what the program called, not only the operator inside of
// it, and say how to fix it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/function/function.h"
#include "trireme/function/module.h"
#include "trireme/function/variable.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

std::string refusal_of(const std::function<Tensor(const Tensor&)>& body) {
  const auto step = function("step", [&](const Tensor& x) { return body(x); });
  return error_text([&] { step(torch::ones({2, 4}, torch::kLong)); });
}

TEST(RefusalTest, NamesThePublicOperator) {
  EXPECT_THAT(refusal_of([](const Tensor& x) { return torch::one_hot(x, 4); }),
              AllOf(HasSubstr("function 'step'"), HasSubstr("called by 'one_hot'")));
  EXPECT_THAT(refusal_of([](const Tensor& x) { return x * x.sum().item<int64_t>(); }),
              HasSubstr("called by 'item'"));
  EXPECT_THAT(refusal_of([](const Tensor& x) { return x.nonzero(); }),
              AllOf(HasSubstr("aten::nonzero"), testing::Not(HasSubstr("called by"))));
}

TEST(RefusalTest, NamesTheModule) {
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(4, 2));
  for (Tensor& parameter : attention->parameters()) parameter.set_requires_grad(false);
  const auto step = function("step", [&](const Tensor& x) {
    // Query and key differ, so the layer compares their contents.
    return std::get<0>(attention(x, x + 0, x));
  });
  EXPECT_THAT(error_text([&] {
                step(torch::ones({2, 1, 4}));
              }),
              HasSubstr("in torch::nn::MultiheadAttention"));
}

template <typename Optimizer, typename Options>
std::string refusal_of_optimizer(Options options) {
  torch::nn::Linear net(3, 1);
  track(net);
  Optimizer optimizer(net->parameters(), options);
  const auto step = function("step", [&](const Tensor& x) {
    optimizer.zero_grad();
    const Tensor loss = net->forward(x).mean();
    loss.backward();
    optimizer.step();
    return loss;
  });
  return error_text([&] { step(torch::ones({2, 3})); });
}

TEST(RefusalTest, NamesTheOptimizerToUseInstead) {
  using namespace torch::optim;
  EXPECT_THAT(refusal_of_optimizer<SGD>(SGDOptions(0.1)),
              AllOf(HasSubstr("torch::optim::SGD"), HasSubstr("Use tr::Sgd")));
  EXPECT_THAT(refusal_of_optimizer<Adam>(AdamOptions(0.1)),
              AllOf(HasSubstr("torch::optim::Adam"), HasSubstr("Use tr::Adam")));
  EXPECT_THAT(refusal_of_optimizer<AdamW>(AdamWOptions(0.1)), HasSubstr("Use tr::AdamW"));
  EXPECT_THAT(refusal_of_optimizer<Adagrad>(AdagradOptions(0.1)), HasSubstr("Use tr::Adagrad"));
  EXPECT_THAT(refusal_of_optimizer<RMSprop>(RMSpropOptions(0.1)), HasSubstr("Use tr::RmsProp"));
}

TEST(RefusalTest, NamesTheOptimizerOfAVariableThatWasWrittenBefore) {
  torch::nn::Linear net(3, 1);
  track(net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  const auto step = function("step", [&](const Tensor& x) {
    optimizer.zero_grad();
    {
      const torch::NoGradGuard no_gradients;
      for (Tensor& parameter : net->parameters()) parameter.clamp_(-1, 1);
    }
    net->forward(x).mean().backward();
    optimizer.step();
  });
  EXPECT_THAT(error_text([&] { step(torch::ones({2, 3})); }), HasSubstr("Use tr::Sgd"));
}

TEST(RefusalTest, ErrorOfAKernelNamesTheFunctionAndItsArguments) {
  torch::nn::Linear net(4, 1);
  track(net);
  const auto step = function("step", [&](const Tensor& x) { return net->forward(x); });
  try {
    step(torch::ones({8, 3}));
    FAIL() << "threw nothing";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("function 'step'"), HasSubstr("Float[8, 3]")));
  }
}

}  // namespace
}  // namespace trireme
