// Mistakes in a program of one process. Each is an error that says what is wrong and what to do.
// The mistakes with data are in data/mistakes_test.cc, those with clusters in
// tests/integration/mistakes_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/base/error.h"
#include "trireme/function/function.h"
#include "trireme/function/replicas.h"
#include "trireme/optim/optimizer.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/libtorch_error.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using torch::Tensor;

Tensor batch() {
  return torch::ones({8, 3});
}

// Returns the error of a captured step that minimizes what `loss` returns.
Error error_of_minimize(const Optimizer& optimizer, const std::function<Tensor(Tensor)>& loss) {
  auto step = function("step", [&](const Tensor& x) {
    const Tensor value = loss(x);
    optimizer.minimize(value);
    return value;
  });
  return error_of([&] { step(batch()); });
}

class MinimizeMistakes : public testing::Test {
 protected:
  torch::nn::Linear net_{3, 1};
  const Sgd optimizer_{net_, {.lr = 0.1}};
  // Name of the optimizer in errors, which begin with it.
  const std::string name_ =
      "the sgd optimizer of variable '" + optimizer_.variables()[0].name() + "': ";
};

TEST_F(MinimizeMistakes, LossOfAnotherModule) {
  torch::nn::Linear other(3, 1);
  track(other);
  const Error error =
      error_of_minimize(optimizer_, [&](const Tensor& x) { return other(x).mean(); });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(error.what(),
              AllOf(StartsWith(name_ + "minimize() in function 'step': the loss does not depend on "
                                       "any of its variables"),
                    HasSubstr("the module that the optimizer was made for")));
}

TEST_F(MinimizeMistakes, LossOfAnotherModuleOutsideOfACapture) {
  Variable other("other", torch::ones({}));
  EXPECT_THAT(error_text([&] { optimizer_.minimize(other.read() * 2); }),
              StartsWith(name_ + "minimize(): the loss does not depend on any of its variables"));
}

TEST_F(MinimizeMistakes, DetachedLoss) {
  EXPECT_THAT(
      error_of_minimize(optimizer_, [&](const Tensor& x) { return net_(x).mean().detach(); })
          .what(),
      AllOf(StartsWith(name_ + "minimize() in function 'step': the loss needs no gradient"),
            HasSubstr("detach()"), HasSubstr("torch::NoGradGuard")));
}

TEST_F(MinimizeMistakes, GradientsSwitchedOff) {
  const auto loss = [&](const Tensor& x) { return net_(x).mean(); };
  const torch::NoGradGuard off;
  EXPECT_THAT(error_of_minimize(optimizer_, loss).what(),
              AllOf(HasSubstr("gradients are switched off"), HasSubstr("torch::NoGradGuard")));
}

TEST_F(MinimizeMistakes, LossThatIsNotANumber) {
  const Error error = error_of_minimize(optimizer_, [&](const Tensor& x) { return net_(x); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), AllOf(StartsWith(name_), HasSubstr("function 'step'"),
                                  HasSubstr("has the shape [8, 1]"), HasSubstr("mean()")));
  EXPECT_THAT(error_text([&] { optimizer_.minimize(Tensor()); }), HasSubstr("undefined"));
}

TEST_F(MinimizeMistakes, LossOfAnotherModuleInAllReplicas) {
  torch::nn::Linear other(3, 1);
  track(other);
  auto step = function("step", [&](const Tensor& x) {
    internal::for_each_replica(2, [&](int) { optimizer_.minimize(other(x).mean()); });
  });
  EXPECT_THAT(error_text([&] { step(batch()); }),
              StartsWith(name_ + "minimize() in function 'step': the loss does not depend"));
}

// A gradient that a replica leaves out counts as zero, even if it leaves out all of them.
TEST_F(MinimizeMistakes, OneReplicaMayHaveNoGradient) {
  torch::nn::Linear other(3, 1);
  track(other);
  const Tensor before = net_->bias.detach().clone();
  internal::for_each_replica(2, [&](int replica) {
    optimizer_.minimize((replica == 0 ? net_ : other)->forward(batch()).mean());
  });
  EXPECT_FALSE(net_->bias.equal(before));
}

TEST_F(MinimizeMistakes, AFrozenVariableIsLeftOut) {
  net_->weight.requires_grad_(false);
  const Tensor weight = net_->weight.clone(), bias = net_->bias.detach().clone();
  optimizer_.minimize(net_(batch()).mean());
  EXPECT_TRUE(net_->weight.equal(weight));
  EXPECT_FALSE(net_->bias.equal(bias));
  net_->bias.requires_grad_(false);
  EXPECT_THAT(error_text([&] { optimizer_.minimize(net_(batch()).mean()); }), HasSubstr("frozen"));
}

TEST_F(MinimizeMistakes, StepWithoutBackward) {
  EXPECT_THAT(error_text([&] { optimizer_.step(); }),
              AllOf(StartsWith(name_ + "step(): no variable has a gradient"),
                    HasSubstr("Call backward() before it")));
  auto step = function("step", [&](const Tensor& x) {
    const Tensor loss = net_(x).mean();
    optimizer_.step();
    return loss;
  });
  EXPECT_THAT(error_text([&] { step(batch()); }), StartsWith(name_ + "step() in function 'step'"));
  net_(batch()).mean().backward();
  optimizer_.step();
}

TEST_F(MinimizeMistakes, WrongNumberOfGradients) {
  EXPECT_THAT(error_text([&] { optimizer_.apply_gradients({torch::ones({1})}); }),
              StartsWith(name_ + "got 1 gradients for 2 variables"));
}

TEST(OptimizerMistakes, OverNothing) {
  const Error error = error_of([] { Adam(std::vector<Variable>{}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("the adam optimizer was given no variables"),
                                  HasSubstr("a module that has parameters")));
  torch::nn::ReLU without_parameters;
  EXPECT_EQ(error_of([&] { Sgd optimizer(without_parameters); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] { Sgd().bind({}); }).code(), ErrorCode::kInvalidArgument);
}

TEST(OptimizerMistakes, OverNothingTrainable) {
  torch::nn::Linear net(3, 1);
  for (Tensor& parameter : net->parameters()) parameter.requires_grad_(false);
  const Error error = error_of([&] { Sgd optimizer(net, {.lr = 0.1}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("none is trainable, 'weight"), HasSubstr("requires_grad")));
  const Variable count("count", torch::zeros({}, torch::kLong));
  EXPECT_THAT(error_text([&] { Sgd optimizer({count}, {.lr = 0.1}); }), HasSubstr("'count"));
}

TEST(OptimizerMistakes, EveryUseOfARecipe) {
  const Sgd recipe({.lr = 0.5});
  const Tensor loss = torch::ones({}).requires_grad_(true);
  const std::vector<std::function<void()>> uses = {
      [&] { recipe.minimize(loss); }, [&] { recipe.step(); },
      [&] { recipe.zero_grad(); },    [&] { recipe.apply_gradients({loss}); },
      [&] { recipe.set_lr(0.1); },    [&] { recipe.variables(); },
      [&] { recipe.state(); },
  };
  for (size_t i = 0; i < uses.size(); ++i) {
    const Error error = error_of(uses[i]);
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition) << i;
    EXPECT_THAT(error.what(), AllOf(HasSubstr("this sgd optimizer is a recipe"),
                                    HasSubstr("a module"), HasSubstr("bind()")))
        << i;
  }
  EXPECT_EQ(recipe.lr(), 0.5);
}

TEST(OptimizerMistakes, MadeInTheStep) {
  torch::nn::Linear net(3, 1);
  auto step = function("step", [&](const Tensor& x) {
    const Sgd optimizer(net, {.lr = 0.1});
    const Tensor loss = net(x).mean();
    optimizer.minimize(loss);
    return loss;
  });
  EXPECT_THAT(
      error_text([&] { step(batch()); }),
      AllOf(StartsWith("function 'step': the sgd optimizer was made in a captured function"),
            HasSubstr("make it before the function")));
}

struct Overloaded {
  Tensor operator()(const Tensor& x) const { return x; }
  Tensor operator()(const Tensor& x, const Tensor&) const { return x; }
};

Tensor doubled(const Tensor& x) {
  return x * 2;
}

// A function that fails this test does not compile: a static_assert says why.
TEST(SignatureMistakes, AFunctionHasOneSignature) {
  const auto has_one = []<typename F>(const F&) { return internal::HasOneSignature<F>; };
  EXPECT_FALSE(has_one([](auto x) { return x; }));
  EXPECT_FALSE(has_one([](const auto&... x) { return (x + ...); }));
  EXPECT_FALSE(has_one(Overloaded()));
  EXPECT_FALSE(has_one(1));
  EXPECT_TRUE(has_one([](const Tensor& x) { return x; }));
  EXPECT_TRUE(has_one([](Tensor x) mutable noexcept { return x; }));
  EXPECT_TRUE(has_one(std::function<Tensor()>()));
  EXPECT_TRUE(has_one(&doubled));
  EXPECT_EQ(function("f", doubled)(torch::ones({})).item<float>(), 2);
  auto noexcept_lambda = function("f", [](const Tensor& x) noexcept { return x * 2; });
  EXPECT_EQ(noexcept_lambda(torch::ones({})).item<float>(), 2);
}

TEST(SignatureMistakes, AFunctionReturnsNothingThroughItsArguments) {
  EXPECT_TRUE(internal::kReturnsThroughArguments<void(Tensor&)>);
  EXPECT_TRUE((internal::kReturnsThroughArguments<void(const Tensor&, std::vector<Tensor>&)>));
  EXPECT_FALSE((internal::kReturnsThroughArguments<void(const Tensor&, Tensor, Tensor&&)>));
  EXPECT_FALSE((internal::kReturnsThroughArguments<Tensor(double, const std::vector<Tensor>&)>));
}

TEST(FunctionMistakes, ANewSignatureInEachCall) {
  const auto log_of = [](const auto& call) {
    testing::internal::CaptureStderr();
    for (int i = 1; i < 9; ++i) call(i);
    return testing::internal::GetCapturedStderr();
  };
  auto sum = function("sum", [](const Tensor& x) { return x.sum(); });
  EXPECT_THAT(log_of([&](int i) {
                sum(torch::ones({i, 2}));
              }),
              AllOf(HasSubstr("function 'sum' was captured again"),
                    HasSubstr("argument 0: Float[5, 2] before, Float[6, 2] now"),
                    HasSubstr("Pad batches to one shape")));
  auto scale = function("scale", [](const Tensor& x, double factor) { return x * factor; });
  EXPECT_THAT(log_of([&](int i) { scale(batch(), i * 0.5); }),
              AllOf(HasSubstr("argument 1: =2.5 before, =3 now"),
                    HasSubstr("pass numbers that change as tensors")));
}

TEST(FunctionMistakes, ACounter) {
  int calls = 0;
  auto count = function("count", [&](const Tensor& x) { return x * ++calls; });
  EXPECT_THAT(error_text([&] { count(batch()); }),
              AllOf(HasSubstr("function 'count' cannot be captured"), HasSubstr("captures differ"),
                    HasSubstr("must be a tensor that is an argument or a variable")));
}

TEST(FunctionMistakes, AWriteToATensorOfTheProgram) {
  Tensor total = torch::zeros({});
  auto add = function("add", [&](const Tensor& x) {
    total.add_(x.sum());
    return total * 1;
  });
  EXPECT_THAT(error_text([&] { add(batch()); }),
              AllOf(HasSubstr("function 'add' cannot be captured"),
                    HasSubstr("writes to a tensor that is not a variable"),
                    HasSubstr("Make it a tr::Variable")));
}

TEST(FunctionMistakes, NotANumber) {
  torch::nn::Linear net(3, 1);
  const Sgd optimizer(net, {.lr = 0.1});
  auto step = function("step", [&](const Tensor& x) {
    const Tensor loss = torch::log(net(x) - 100).mean();
    optimizer.minimize(loss);
    return loss;
  });
  EXPECT_TRUE(std::isnan(step(batch()).item<float>()));
  net->reset_parameters();
  EXPECT_THAT(error_text([&] { step.run({.check_numerics = true}, batch()); }),
              AllOf(StartsWith("function 'step': operator 'aten::log' (node "),
                    HasSubstr("produced a NaN")));
}

TEST(FunctionMistakes, AKernelThatFailsInAReplay) {
  torch::nn::Embedding table(10, 2);
  track(table, "table");
  auto lookup = function("lookup", [&](const Tensor& ids) { return table(ids) * 2; },
                         {.check_capture = false});
  const Tensor known = torch::tensor({1, 2}), unknown = torch::tensor({1, 20});
  lookup(known);
  EXPECT_THAT(error_text([&] { lookup(unknown); }),
              AllOf(StartsWith("function 'lookup': operator 'aten::"), HasSubstr("module 'table'"),
                    HasSubstr("failed: ")));
}

// The error is LibTorch's own, with the function added, since a program has many.
TEST(FunctionMistakes, AKernelThatFailsInACapture) {
  torch::nn::Linear net(4, 2);
  track(net, "net");
  auto forward = function("forward", [&](const Tensor& x) { return net(x); });
  EXPECT_THAT(
      libtorch_error([&] { forward(batch()); }),
      AllOf(HasSubstr("(8x3 and 4x2)"), HasSubstr("function 'forward'"), HasSubstr("Float[8, 3]")));
  const Tensor x = torch::ones({8, 4}), doubles = x.to(torch::kDouble), labels = torch::ones({8});
  EXPECT_THAT(
      libtorch_error([&] { forward(doubles); }),
      AllOf(HasSubstr("dtype"), HasSubstr("function 'forward'"), HasSubstr("Double[8, 4]")));
  auto loss = function("loss", [&](const Tensor& x, const Tensor& y) {
    return torch::cross_entropy_loss(net(x), y);
  });
  EXPECT_THAT(libtorch_error([&] { loss(x, labels); }),
              AllOf(HasSubstr("function 'loss'"), HasSubstr("Float[8]")));
}

TEST(VariableMistakes, AValueOfAnotherShape) {
  const Variable v("v", torch::zeros({3}));
  const Tensor other = torch::zeros({2, 4});
  EXPECT_THAT(error_text([&] { v.assign(other); }),
              AllOf(HasSubstr("variable '" + v.name() + "'"), HasSubstr("[2, 4]"), HasSubstr("[3]"),
                    Not(HasSubstr("dimensions"))));
}

TEST(VariableMistakes, ASumOfAnotherDtype) {
  const Variable count("count", torch::zeros({3}, torch::kLong));
  EXPECT_THAT(error_text([&] { count.assign_add(torch::ones({3}) * 0.5); }),
              AllOf(HasSubstr("variable '" + count.name() + "'"), HasSubstr("int64"),
                    HasSubstr("float32")));
}

}  // namespace
}  // namespace trireme
