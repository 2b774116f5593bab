// Programs that change something outside of a captured function between its calls, or that look
// past LibTorch's operators. Each must give what plain code gives, or be refused with a message
// that says how to fix it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <thread>

#include "trireme/capture/memory_lock.h"
#include "trireme/function/expect_exact.h"
#include "trireme/function/function.h"
#include "trireme/function/module.h"
#include "trireme/function/variable.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct TwoLayers : torch::nn::Module {
  TwoLayers() {
    a = register_module("a", torch::nn::Linear(4, 4));
    b = register_module("b", torch::nn::Linear(4, 1));
  }
  Tensor forward(const Tensor& x) { return b(torch::relu(a(x))); }
  torch::nn::Linear a{nullptr}, b{nullptr};
};

struct DropNet : torch::nn::Module {
  DropNet() {
    fc = register_module("fc", torch::nn::Linear(4, 4));
    drop = register_module("drop", torch::nn::Dropout(0.5));
  }
  Tensor forward(const Tensor& x) { return drop(fc(x)); }
  torch::nn::Linear fc{nullptr};
  torch::nn::Dropout drop{nullptr};
};

// Does one step of gradient descent with the gradients in `.grad`.
void descend(const std::vector<Tensor>& parameters) {
  const torch::NoGradGuard no_gradients;
  for (Tensor parameter : parameters) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad() * 0.1);
  }
}

TEST(ExactGradientsTest, LeftForAnOptimizerOutsideAreRefused) {
  torch::nn::Linear net(3, 1);
  track(net);
  const auto step = function("step", [&](const Tensor& x) {
    net->zero_grad();
    const Tensor loss = net->forward(x).pow(2).mean();
    loss.backward();
    return loss;
  });
  const std::string text = error_text([&] { step(torch::ones({2, 3})); });
  EXPECT_THAT(text, HasSubstr("leaves the gradient of variable"));
  EXPECT_THAT(text, HasSubstr("inside of the function"));
}

TEST(ExactGradientsTest, ZeroGradOfAModuleBeforeBackwardWorks) {
  expect_exact([] {
    torch::manual_seed(1);
    torch::nn::Linear net(3, 1);
    track(net);
    const auto step = function("step", [&](const Tensor& x) {
      net->zero_grad();
      const Tensor loss = (net->forward(x) - 1).pow(2).mean();
      loss.backward();
      descend(net->parameters());
      return loss;
    });
    Tensors results;
    for (int i = 0; i < 4; ++i) results.push_back(step(torch::ones({2, 3}) * i));
    results.push_back(net->weight.detach().clone());
    return results;
  });
}

TEST(ExactGradientsTest, ZerosWrittenIntoOldGradientsAreRefused) {
  torch::nn::Linear net(3, 1);
  track(net);
  const auto step = function("step", [&](const Tensor& x) {
    net->zero_grad(/*set_to_none=*/false);
    const Tensor loss = net->forward(x).mean();
    loss.backward();
    descend(net->parameters());
    return loss;
  });
  EXPECT_THAT(error_text([&] { step(torch::ones({2, 3})); }), HasSubstr("not zero_grad(false)"));
}

// With offsets, the function throws on perturbed numbers and is captured on the same ones again.
TEST(ExactGradientsTest, AddedToOldOnesAreRefusedOnTheSameNumbersToo) {
  torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(5, 2).mode(torch::kSum));
  track(bag);
  const auto step = function("step", [&](const Tensor& ids, const Tensor& offsets) {
    const Tensor loss = bag(ids, offsets).sum();
    loss.backward();
    const torch::NoGradGuard no_gradients;
    bag->weight.sub_(bag->weight.grad());
    return loss;
  });
  EXPECT_THAT(error_text([&] {
                step(torch::tensor({0, 1, 2, 3}), torch::tensor({0, 2}));
              }),
              HasSubstr("zero_grad()"));
}

TEST(ExactGradientsTest, AnArgumentThatNeedsThemIsRefused) {
  const auto square = function("square", [](const Tensor& x) {
    const Tensor sum = x.pow(2).sum();
    sum.backward();
    return sum;
  });
  const Tensor x = torch::ones({2}).requires_grad_();
  EXPECT_THAT(error_text([&] { square(x); }), HasSubstr("needs gradients"));
}

TEST(ExactModulesTest, FreezingALayerCapturesAgain) {
  expect_exact([] {
    torch::manual_seed(1);
    auto net = std::make_shared<TwoLayers>();
    track(net);
    const auto step = function("step", [&](const Tensor& x) {
      net->zero_grad();
      const Tensor loss = net->forward(x).pow(2).mean();
      loss.backward();
      descend(net->parameters());
      return loss;
    });
    const Tensor x = torch::randn({8, 4});
    Tensors results{step(x)};
    for (Tensor& parameter : net->a->parameters()) {
      parameter.set_requires_grad(false);
      parameter.mutable_grad() = Tensor();
    }
    for (int i = 0; i < 2; ++i) results.push_back(step(x));
    for (const Tensor& parameter : net->parameters()) {
      results.push_back(parameter.detach().clone());
    }
    return results;
  });
}

TEST(ExactModulesTest, OneOnTheStackIsRefused) {
  DropNet net;
  const std::string text = error_text([&] { track(static_cast<torch::nn::Module&>(net)); });
  EXPECT_THAT(text, HasSubstr("not owned by a shared pointer"));
  EXPECT_THAT(text, HasSubstr("std::make_shared"));
}

TEST(ExactModulesTest, UntrackedDropoutIsRefused) {
  torch::nn::Linear net(4, 4);
  track(net);
  for (const bool training : {true, false}) {
    torch::nn::Dropout drop(0.9);
    drop->train(training);
    const auto step = function("step", [&](const Tensor& x) { return drop(net(x)); });
    const std::string text = error_text([&] { step(torch::ones({1, 4})); });
    EXPECT_THAT(text, HasSubstr("torch::nn::Dropout, which is not tracked"));
    EXPECT_THAT(text, HasSubstr("tr::track()"));
  }
}

TEST(ExactModulesTest, DropoutAsAFunctionNeedsNoModule) {
  expect_exact([] {
    const auto step =
        function("step", [](const Tensor& x) { return torch::dropout(x, 0.5, true); });
    return Tensors{step(torch::ones({64})), step(torch::ones({64}))};
  });
}

TEST(ExactModulesTest, ModeAndRateOfDropoutAreNoticed) {
  expect_exact([] {
    torch::manual_seed(1);
    auto net = std::make_shared<DropNet>();
    track(net);
    const auto step = function("step", [&](const Tensor& x) { return net->forward(x); });
    const Tensor x = torch::ones({16, 4});
    Tensors results{step(x)};
    net->drop->options.p(0.9);
    results.push_back(step(x));
    net->eval();
    results.push_back(step(x));
    net->train();
    results.push_back(step(x));
    return results;
  });
}

TEST(ExactModulesTest, AReplacedSubmoduleIsNoticed) {
  torch::manual_seed(1);
  auto net = std::make_shared<TwoLayers>();
  track(net);
  const auto step = function("step", [&](const Tensor& x) { return net->forward(x); });
  const Tensor x = torch::ones({1, 4});
  step(x);
  net->b = net->replace_module("b", torch::nn::Linear(4, 1));
  EXPECT_THAT(error_text([&] { step(x); }), HasSubstr("tr::track()"));
  track(net);
  EXPECT_TRUE(internal::nearly_equal(step(x), net->forward(x).detach()));
}

TEST(ExactModulesTest, AReplacedParameterIsNoticed) {
  torch::manual_seed(1);
  auto net = std::make_shared<TwoLayers>();
  track(net);
  const auto step = function("step", [&](const Tensor& x) { return net->forward(x); });
  const Tensor x = torch::ones({1, 4});
  step(x);
  net->b->weight = net->b->register_parameter("weight2", torch::ones({1, 4}));
  EXPECT_THAT(error_text([&] { step(x); }), HasSubstr("tr::track()"));
  track(net);
  EXPECT_TRUE(internal::nearly_equal(step(x), net->forward(x).detach()));
}

TEST(ExactModulesTest, AReplacedBufferIsNoticed) {
  struct Masked : torch::nn::Module {
    Tensor mask = register_buffer("mask", torch::zeros({2}));
  };
  auto net = std::make_shared<Masked>();
  track(net);
  const auto step = function("step", [&](const Tensor& x) { return x + net->mask; });
  step(torch::ones({2}));
  net->mask = net->register_buffer("mask2", torch::full({2}, 5.0));
  track(net);
  EXPECT_EQ(step(torch::ones({2}))[0].item<float>(), 6);
}

TEST(ExactModulesTest, AReplacedModuleIsNoticed) {
  torch::manual_seed(1);
  auto net = std::make_shared<TwoLayers>();
  track(net);
  const auto step = function("step", [&](const Tensor& x) { return net->forward(x); });
  const Tensor x = torch::ones({1, 4});
  step(x);
  net = std::make_shared<TwoLayers>();
  track(net);
  EXPECT_TRUE(internal::nearly_equal(step(x), net->forward(x).detach()));
  step(x);
  EXPECT_EQ(step.captures(), 2);
}

TEST(ExactModulesTest, RatesInsideOfOtherLayersAreNoticed) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 4).num_layers(2).dropout(0.0));
  track(lstm);
  const auto step = function("step", [&](const Tensor& x) { return std::get<0>(lstm(x)); });
  step(torch::ones({3, 2, 4}));
  lstm->options_base.dropout(0.5);
  step(torch::ones({3, 2, 4}));
  EXPECT_EQ(step.captures(), 2);
}

TEST(ExactModulesTest, WritesThroughAPointerBetweenStepsCount) {
  torch::nn::Linear net(1, 1);
  track(net);
  const auto step = function("step", [&](const Tensor& x) { return net(x); });
  step(torch::ones({1, 1}));
  net->weight.data_ptr<float>()[0] = 100;
  net->bias.data_ptr<float>()[0] = 0;
  EXPECT_EQ(step(torch::ones({1, 1})).item<float>(), 100);
}

// Locks depend on two functions of LibTorch that may change with its version.
TEST(MemoryLockTest, AnAccessThrowsUntilTheLockIsRemoved) {
  const Tensor tensor = torch::arange(4).to(torch::kFloat);
  const Tensor view = tensor.narrow(0, 2, 2);
  internal::lock_memory(tensor, "locked on purpose");
  for (const std::function<void()>& use : std::vector<std::function<void()>>{
           [&] { tensor.data_ptr<float>(); }, [&] { tensor.const_data_ptr<float>(); },
           [&] { view.accessor<float, 1>(); }, [&] { view.sum(); },
           [&] { Tensor(view).zero_(); }}) {
    try {
      use();
      ADD_FAILURE() << "an access did not throw";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("locked on purpose"));
    }
  }
  EXPECT_EQ(view.size(0), 2);
  EXPECT_EQ(internal::readable_alias(view).sum().item<float>(), 5);
  internal::unlock_memory(tensor);
  EXPECT_EQ(view.sum().item<float>(), 5);
}

constexpr char kPastOperators[] = "without an operator";

TEST(ExactReadsTest, OfAVariableByPointerAreRefused) {
  const Variable count("count", torch::zeros({}, torch::kLong));
  const auto step = function("step", [&](const Tensor& x) {
    count.assign_add(torch::ones({}, torch::kLong));
    return x * (1.0 / (1.0 + static_cast<double>(*count.read().data_ptr<int64_t>())));
  });
  EXPECT_THAT(error_text([&] { step(torch::ones({1})); }), HasSubstr(kPastOperators));
  // The variable can be used again.
  EXPECT_EQ(count.read().item<int64_t>(), 0);
  EXPECT_EQ(*count.read().data_ptr<int64_t>(), 0);
}

TEST(ExactReadsTest, OfTheLargestNumberAreRefused) {
  const auto step = function("step", [](const Tensor& x, const Tensor& lengths) {
    const auto all = lengths.accessor<int64_t, 1>();
    int64_t longest = 0;
    for (int64_t i = 0; i < all.size(0); ++i) longest = std::max(longest, all[i]);
    return x.narrow(1, 0, longest).sum();
  });
  const Tensor lengths = torch::tensor({1, 2, 3}, torch::kLong);
  EXPECT_THAT(error_text([&] { step(torch::ones({3, 8}), lengths); }), HasSubstr(kPastOperators));
  EXPECT_EQ(lengths.data_ptr<int64_t>()[2], 3);
}

TEST(ExactReadsTest, OfAHistogramAreRefused) {
  const auto step = function("step", [](const Tensor& logits, const Tensor& labels) {
    const auto all = labels.accessor<int64_t, 1>();
    std::vector<float> weights(3, 0);
    for (int64_t i = 0; i < all.size(0); ++i) weights[all[i]] += 1;
    return torch::cross_entropy_loss(logits, labels, torch::tensor(weights));
  });
  const Tensor labels = torch::tensor({0, 1, 2, 0, 1, 2}, torch::kLong);
  EXPECT_THAT(error_text([&] { step(torch::randn({6, 3}), labels); }), HasSubstr(kPastOperators));
}

TEST(ExactReadsTest, OfAFlagAreRefused) {
  const auto step = function("step", [](const Tensor& x, const Tensor& flag) {
    return *flag.data_ptr<bool>() ? x * 2 : -x;
  });
  EXPECT_THAT(error_text([&] { step(torch::ones({2}), torch::ones({1}, torch::kBool)); }),
              HasSubstr(kPastOperators));
}

TEST(ExactReadsTest, OfAResultAreRefused) {
  const auto step = function("step", [](const Tensor& x) {
    const Tensor positive = x > -1000;
    return *positive.data_ptr<bool>() ? x * 2 : -x;
  });
  EXPECT_THAT(error_text([&] { step(torch::ones({2})); }), HasSubstr(kPastOperators));
}

TEST(ExactReadsTest, ByPrintingAreRefused) {
  const auto step = function("step", [](const Tensor& x) {
    std::ostringstream out;
    out << x;
    return x * 2;
  });
  EXPECT_THAT(error_text([&] { step(torch::ones({2})); }), HasSubstr("cannot be captured"));
}

TEST(ExactReadsTest, OnAnotherThreadAreRefused) {
  const auto step = function("step", [](const Tensor& x) {
    Tensor twice;
    std::thread thread([&] { twice = x * 2; });
    thread.join();
    return twice + 1;
  });
  EXPECT_THAT(error_text([&] { step(torch::ones({2})); }), HasSubstr("cannot be captured"));
}

// The offsets of an embedding bag must increase, which those of the self-check do not.
TEST(ExactArgumentsTest, NeedNotBeValidInAnotherOrder) {
  expect_exact([] {
    torch::manual_seed(1);
    torch::nn::EmbeddingBag bag(10, 4);
    track(bag);
    const auto step = function("step", [&](const Tensor& rows, const Tensor& offsets) {
      return bag->forward(rows, offsets);
    });
    const Tensor rows = torch::arange(6);
    return Tensors{step(rows, torch::tensor({0, 2, 4}, torch::kLong)),
                   step(rows, torch::tensor({0, 1, 5}, torch::kLong))};
  });
}

TEST(ExactReadsTest, OfATensorFilledByHandAreAllowed) {
  expect_exact([] {
    const auto step = function("step", [](const Tensor& x) {
      const Tensor weights = torch::empty({2});
      weights.accessor<float, 1>()[0] = 3;
      weights.accessor<float, 1>()[1] = weights.accessor<float, 1>()[0] + 1;
      return x * weights;
    });
    return Tensors{step(torch::ones({2})), step(torch::ones({2}) * 5)};
  });
}

}  // namespace
}  // namespace trireme
