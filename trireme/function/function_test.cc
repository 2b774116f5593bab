#include "trireme/function/function.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/capture/scope.h"
#include "trireme/exec/random.h"
#include "trireme/function/module.h"
#include "trireme/function/variable.h"
#include "trireme/graph/graph_file.h"
#include "trireme/graph/plan.h"

namespace trireme {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

TEST(Function, CapturesOncePerSignature) {
  int runs = 0;
  auto twice = function("twice", [&](const Tensor& x) {
    ++runs;
    return x.mul(2);
  });
  twice(torch::ones({2}));
  const int after_first = runs;
  EXPECT_TRUE(twice(torch::full({2}, 4.0)).equal(torch::full({2}, 8.0)));
  EXPECT_EQ(runs, after_first) << "a replay does not run the body";
  EXPECT_EQ(twice.captures(), 1);
  twice(torch::ones({3}));
  twice(torch::ones({3}, torch::kDouble));
  twice(torch::ones({3, 3}));
  twice(torch::ones({3, 3}).t().narrow(0, 0, 2));
  EXPECT_EQ(twice.captures(), 5);
}

TEST(Function, TakesAndReturnsStructures) {
  using Named = std::map<std::string, Tensor>;
  auto f = function("f", [](const std::tuple<Tensor, std::vector<Tensor>>& in, const Named& named,
                            int times, const std::optional<Tensor>& maybe) {
    Tensor sum = std::get<0>(in).mul(times);
    for (const Tensor& t : std::get<1>(in)) sum = sum.add(t);
    if (maybe) sum = sum.add(*maybe);
    return std::make_pair(Named{{"sum", sum}, {"a", named.at("a").neg()}},
                          std::vector<Tensor>{sum.mul(2)});
  });
  const auto run = [&](double x, int times, bool maybe) {
    const Tensor t = torch::full({2}, x);
    return f({t, {t, t}}, {{"a", t}}, times, maybe ? std::optional<Tensor>(t) : std::nullopt);
  };
  for (double x : {1.0, 5.0}) {
    auto [named, list] = run(x, 3, true);
    EXPECT_TRUE(named.at("sum").equal(torch::full({2}, 6 * x)));
    EXPECT_TRUE(named.at("a").equal(torch::full({2}, -x)));
    EXPECT_TRUE(list[0].equal(torch::full({2}, 12 * x)));
  }
  EXPECT_EQ(f.captures(), 1);
  EXPECT_TRUE(run(1, 4, true).second[0].equal(torch::full({2}, 14.0)));
  EXPECT_TRUE(run(1, 4, false).second[0].equal(torch::full({2}, 12.0)));
  EXPECT_EQ(f.captures(), 3) << "numbers and the presence of optionals are part of the signature";
}

TEST(Function, PassingOneTensorTwiceDoesNotLinkTheArguments) {
  auto f = function("f", [](const Tensor& x, const Tensor& y) { return x.sub(y); });
  const Tensor a = torch::ones({2});
  EXPECT_TRUE(f(a, a).equal(torch::zeros({2})));
  EXPECT_TRUE(f(a, a.mul(5)).equal(torch::full({2}, -4.0)));
  EXPECT_EQ(f.captures(), 1);
}

TEST(Function, TakesSlicesOfALargerTensor) {
  const Tensor data = torch::arange(20).to(torch::kFloat).view({10, 2});
  auto f = function("f", [](const Tensor& x) {
    Tensor y = x.mul(1);
    return std::vector<Tensor>{x.data().t().contiguous(), y};
  });
  for (int i = 0; i < 5; ++i) {
    const Tensor batch = data.narrow(0, 2 * i, 2);
    EXPECT_TRUE(f(batch)[0].equal(batch.t().contiguous())) << i;
  }
  EXPECT_EQ(f.captures(), 1);
}

TEST(Function, EvictsTheLeastRecentlyUsedSignature) {
  auto f = function("f", [](const Tensor& x) { return x.mul(2); }, {.cached_signatures = 2});
  for (int size : {1, 2, 1, 3, 1, 2}) f(torch::ones({size}));
  EXPECT_EQ(f.captures(), 4) << "size 3 evicts size 2";
}

TEST(Function, WarnsOnTheFifthRetrace) {
  auto f = function("greedy", [](const Tensor& x, const Tensor& y) { return x.mul(y.sum()); });
  testing::internal::CaptureStderr();
  for (int size = 1; size <= 5; ++size) f(torch::ones({2}), torch::ones({size}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  f(torch::ones({2}), torch::ones({6}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("'greedy'"), HasSubstr("argument 1: Float[5] before, Float[6] now")));
}

TEST(Function, ChangedConstantIsCapturedAgain) {
  Tensor scale = torch::ones({2});
  auto f = function("f", [scale](const Tensor& x) { return x.mul(scale); });
  f(torch::ones({2}));
  scale.fill_(7);
  EXPECT_TRUE(f(torch::ones({2})).equal(torch::full({2}, 7.0)));
  EXPECT_EQ(f.captures(), 2);
}

TEST(Function, TrainingModeIsPartOfTheSignature) {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                            torch::nn::Dropout(0.5));
  track(net);
  auto f = function("f", [net](const Tensor& x) mutable { return net->forward(x); });
  const Tensor x = torch::rand({8, 3});
  net->train();
  f(x);
  net->eval();
  const Tensor evaluated = f(x);
  EXPECT_TRUE(evaluated.allclose(net->forward(x)));
  EXPECT_TRUE(evaluated.equal(f(x)));
  net->train();
  EXPECT_FALSE(f(x).equal(f(x)));
  EXPECT_EQ(f.captures(), 2);
}

TEST(Function, ConvertedModuleIsCapturedAgain) {
  torch::nn::Linear net(3, 2);
  track(net);
  auto f = function("f", [net](const Tensor& x) mutable { return net(x.to(net->weight.dtype())); });
  EXPECT_EQ(f(torch::ones({1, 3})).scalar_type(), torch::kFloat);
  net->to(torch::kDouble);
  EXPECT_EQ(f(torch::ones({1, 3})).scalar_type(), torch::kDouble);
}

TEST(Function, CaptureLeavesNoTrace) {
  Variable w("w", torch::ones({2}));
  w.read().mutable_grad() = torch::full({2}, 3.0);
  torch::manual_seed(5);
  const Tensor expected = torch::rand({3});
  torch::manual_seed(5);
  auto f = function("f", [w](const Tensor& x) {
    w.assign_add(torch::rand({2}));
    w.read().mutable_grad() = Tensor();
    x.mul(w.read()).sum().backward();
    return x.mul(w.read().grad());
  });
  const Tensor x = torch::ones({2});
  f.graph(x);
  EXPECT_TRUE(w.read().equal(torch::ones({2})));
  EXPECT_TRUE(w.read().grad().equal(torch::full({2}, 3.0)));
  EXPECT_TRUE(x.equal(torch::ones({2})));
  EXPECT_TRUE(torch::rand({3}).equal(expected));
}

TEST(Function, ExceptionDuringCaptureLeavesNoTrace) {
  Variable w("w", torch::ones({2}));
  bool fail = true;
  auto f = function("f", [&](const Tensor& x) {
    w.assign_add(x);
    if (fail) throw std::runtime_error("the program's own error");
    return w.read().mul(2);
  });
  EXPECT_THROW(f(torch::ones({2})), std::runtime_error);
  EXPECT_TRUE(w.read().equal(torch::ones({2})));
  EXPECT_THROW(f(torch::ones({3})), std::exception) << "shapes do not agree";
  fail = false;
  EXPECT_TRUE(f(torch::ones({2})).equal(torch::full({2}, 4.0)));
  EXPECT_TRUE(torch::ones({2}).add(1).equal(torch::full({2}, 2.0)))
      << "operators are no longer recorded";
}

TEST(Function, RandomNumbersFollowFromSeedAndStep) {
  auto draw =
      function("draw", [](const Tensor& x) { return x.add(torch::rand({4})); }, {.seed = 11});
  const Tensor zero = torch::zeros({4}), first = draw(zero), second = draw(zero);
  EXPECT_FALSE(first.equal(second));
  draw.set_step(0);
  EXPECT_TRUE(draw(zero).equal(first));
  seed_step(11, 1);
  EXPECT_TRUE(torch::rand({4}).equal(second)) << "eager code draws the same";
  run_eagerly(true);
  draw.set_step(1);
  EXPECT_TRUE(draw(zero).equal(second));
  run_eagerly(false);
}

TEST(Function, RejectsAnArgumentWithAutogradHistory) {
  auto f = function("f", [](const Tensor& x) { return x.mul(2); });
  const Tensor leaf = torch::ones({2}).requires_grad_(true);
  try {
    f(leaf.mul(3));
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("autograd history"));
  }
}

TEST(Function, CapturesOfSeveralThreadsDoNotInterfere) {
  constexpr int kThreads = 8;
  Variable shared("shared", torch::full({4}, 2.0), {.trainable = false});
  std::vector<Variable> variables;
  for (int i = 0; i < kThreads; ++i) {
    variables.emplace_back("own", torch::zeros({4}));
    variables.back().read().mutable_grad() = torch::full({4}, 7.0);
  }
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Variable own = variables[i];
      auto f = function("f", [own, shared](const Tensor& x) {
        own.assign_add(x.mul(shared.read()));
        torch::autograd::Variable loss = own.read().pow(2).sum();
        return own.read().add(torch::rand({4}).mul(0));
      });
      bool equal = true;
      for (int step = 1; step <= 20; ++step) {
        const Tensor result = f(torch::full({4}, static_cast<double>(i)));
        equal = equal && result.equal(torch::full({4}, 2.0 * i * step));
      }
      right += equal;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kThreads);
  // No capture restored gradients that another had saved.
  for (const Variable& own : variables) {
    EXPECT_TRUE(own.read().grad().equal(torch::full({4}, 7.0)));
  }
}

TEST(Function, RejectsOperatorsOnAnotherThread) {
  auto f = function("f", [](const Tensor& x) {
    Tensor y;
    std::thread([&] { y = x.mul(2); }).join();
    return y.add(1);
  });
  try {
    f(torch::rand({4}));
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("two captures differ"));
  }
}

TEST(Function, ErrorsInReplayNameModuleAndScope) {
  torch::nn::Linear net(3, 2);
  track(net, "net");
  auto f = function("f", [net](const Tensor& x, const Tensor& i) mutable {
    Scope scope("loss");
    return net(x).index_select(0, i);
  });
  const Tensor x = torch::ones({2, 3});
  f(x, torch::zeros({1}, torch::kLong));
  EXPECT_THAT(
      f.graph(x, torch::zeros({1}, torch::kLong)).explain(),
      AllOf(HasSubstr("module net"), HasSubstr("scope loss"), HasSubstr("variable 'net.weight'")));
  try {
    f(x, torch::full({1}, 9, torch::kLong));
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("function 'f'"), HasSubstr("aten::index_select"),
                                    HasSubstr("scope 'loss'"), HasSubstr("out of range")));
  }
}

TEST(Function, StopsAndTracesOnRequest) {
  auto f = function("f", [](const Tensor& x) { return x.mul(2).add(1); });
  const std::string path = testing::TempDir() + "/trace.json";
  f.run({.trace_file = path}, torch::ones({2}));
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("aten::mul"));
  std::stop_source source;
  source.request_stop();
  EXPECT_THROW(f.run({.stop = source.get_token()}, torch::ones({2})), Error);
}

TEST(Function, ExplainNamesTheForwardOperatorOfAGradient) {
  Variable w("w", torch::ones({3, 2}));
  auto f = function("f", [w](const Tensor& x) {
    Tensor loss = x.matmul(w.read()).relu().sum();
    w.assign_sub(torch::autograd::grad({loss}, {w.read()})[0]);
    return loss;
  });
  EXPECT_THAT(
      f.graph(torch::ones({4, 3})).explain(),
      AllOf(HasSubstr("(aten::mm)"), HasSubstr("(aten::relu)"), HasSubstr("writes variable 'w'")));
}

TEST(Variable, KeepsItsShapeAndGetsAUniqueName) {
  Variable a("v", torch::ones({2})), b("v", torch::ones({2}));
  EXPECT_EQ(a.name(), "v");
  EXPECT_EQ(b.name(), "v_1");
  a.assign(torch::full({2}, 3.0));
  a.assign_add(torch::ones({2}));
  a.assign_sub(torch::full({2}, 2.0));
  EXPECT_TRUE(a.read().equal(torch::full({2}, 2.0)));
  EXPECT_THROW(a.assign(torch::ones({3})), Error);
  EXPECT_THROW(a.assign_add(torch::ones({})), Error);
}

// Expects of the operators on variables what those on their contents return.
void expect_arithmetic(const Variable& v, const Variable& w, const Tensor& x) {
  const auto expect = [](const Tensor& result, const Tensor& expected) {
    EXPECT_TRUE(result.equal(expected)) << result << expected;
  };
  const Tensor a = v.read(), b = w.read();
  expect(v + w, a + b);
  expect(v - w, a - b);
  expect(v * w, a * b);
  expect(v / w, a / b);
  expect(-v, -a);
  expect(2 * v, 2 * a);
  expect(v * 2.5, a * 2.5);
  expect(v - 1, a - 1);
  expect(1 - v, 1 - a);
  expect(v + 1, 1 + a);
  expect(1 + v, 1 + a);
  expect(v / 2, a / 2);
  expect(2 / v, 2 / a);
  expect(v * x, a * x);
  expect(x + v, x + a);
  expect(x / v - w, x / a - b);
  expect(torch::add(v, w), a + b);
  expect(torch::add(x, v), x + a);
}

TEST(Variable, TakesPartInArithmetic) {
  const Variable v("v", torch::full({2}, 3.0)), w("w", torch::full({2}, 5.0));
  expect_arithmetic(v, w, torch::full({2}, 7.0));
  const auto f = function("arithmetic", [&](const Tensor& x) {
    return std::vector<Tensor>{v + w, 2 * v - x, -w, (v - 1) / w};
  });
  const Tensor x = torch::ones({2});
  f(x);
  v.assign(torch::full({2}, 4.0));
  const std::vector<Tensor> results = f(x);
  const double expected[] = {9, 7, -5, 0.6};
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_FLOAT_EQ(results[i][0].item<float>(), static_cast<float>(expected[i])) << i;
  }
  EXPECT_EQ(f.captures(), 1);
  (v * v + 2 * v).sum().backward();
  EXPECT_TRUE(v.read().grad().equal(torch::full({2}, 10.0)));
}

}  // namespace
}  // namespace trireme
