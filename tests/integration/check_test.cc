// check() finds a training step equal to eager code, in this process and over two tasks, and leaves
// the state of the program and of the session as it was.
#include "trireme/runtime/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "trireme/capture/device_scope.h"
#include "trireme/data/dataset.h"
#include "trireme/function/module.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using torch::Tensor;

// A small net with dropout that Adam trains. Its layers can be placed on other tasks.
struct CheckedNet : torch::nn::Module {
  CheckedNet() {
    first = register_module("first", torch::nn::Linear(4, 8));
    second = register_module("second", torch::nn::Linear(8, 2));
  }
  Tensor forward(const Tensor& x) {
    return second(torch::dropout(torch::relu(first(x)), 0.3, is_training()));
  }
  torch::nn::Linear first = nullptr, second = nullptr;
};

struct CheckedTraining {
  CheckedTraining() {
    torch::manual_seed(3);
    net = std::make_shared<CheckedNet>();
    x = torch::rand({5, 4});
    y = torch::rand({5, 2});
  }
  auto make_step() {
    optimizer.emplace(net, AdamOptions{.lr = 0.01});
    return function("step", [this](const Tensor& x, const Tensor& y) {
      const Tensor loss = torch::mse_loss(net->forward(x), y);
      optimizer->minimize(loss);
      return loss;
    });
  }
  std::vector<Variable> state() const {
    std::vector<Variable> all = optimizer->variables();
    for (const Variable& variable : optimizer->state()) all.push_back(variable);
    return all;
  }

  std::shared_ptr<CheckedNet> net;
  std::optional<Adam> optimizer;
  Tensor x, y;
};

std::vector<Tensor> copies_of(const std::vector<Variable>& variables) {
  std::vector<Tensor> contents;
  for (const Variable& variable : variables) contents.push_back(variable.read().detach().clone());
  return contents;
}

void expect_equal_tensors(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

TEST(Check, FindsATrainingStepWithDropoutEqual) {
  CheckedTraining training;
  const auto step = training.make_step();
  const CheckReport report = check(step, {.steps = 20}, training.x, training.y);
  EXPECT_TRUE(report.equal) << report.to_string();
  EXPECT_EQ(report.steps_compared, 20);
  EXPECT_EQ(report.step, -1);
  EXPECT_LE(report.difference, 1e-6);
  EXPECT_THAT(report.to_string(), HasSubstr("equal to eager code in 20 steps"));
}

TEST(Check, RestoresTheState) {
  CheckedTraining training;
  const auto step = training.make_step();
  for (int i = 0; i < 3; ++i) step(training.x, training.y);
  const Tensor weight = training.net->first->weight;
  weight.mutable_grad() = torch::full_like(weight, 7);
  const Tensor gradient = weight.grad();
  const std::vector<Tensor> before = copies_of(training.state());
  torch::manual_seed(11);
  const Tensor next_random = torch::rand({4});
  torch::manual_seed(11);

  EXPECT_TRUE(check(step, {.steps = 5}, training.x, training.y).equal);
  expect_equal_tensors(copies_of(training.state()), before);
  EXPECT_EQ(step.step(), 3u);
  EXPECT_TRUE(weight.grad().is_same(gradient));
  EXPECT_TRUE(torch::equal(gradient, torch::full_like(weight, 7)));
  EXPECT_TRUE(torch::equal(torch::rand({4}), next_random));
  EXPECT_FALSE(runs_eagerly());
}

TEST(Check, RestoresTheStateIfEagerCodeThrows) {
  CheckedTraining training;
  int calls = 0;
  training.optimizer.emplace(training.net, AdamOptions{.lr = 0.01});
  const auto numbers = Dataset::range(0, 100).iterator();
  const auto step = function("step",
                             [&](const Tensor& x, Iterator& numbers) {
                               const Tensor scale = numbers.next();
                               const Tensor loss = (training.net->forward(x) * scale).pow(2).sum();
                               loss.backward();
                               training.optimizer->step();
                               training.optimizer->zero_grad();
                               if (++calls == 6) throw std::runtime_error("the sixth call");
                               return loss;
                             },
                             {.check_capture = false});
  const std::vector<Tensor> before = copies_of(training.state());
  EXPECT_THROW(check(step, {}, training.x, numbers), std::runtime_error);
  expect_equal_tensors(copies_of(training.state()), before);
  EXPECT_EQ(step.step(), 0u);
  EXPECT_FALSE(training.net->first->weight.grad().defined());
  EXPECT_EQ(Iterator(numbers).next().item<int64_t>(), 0);
  EXPECT_FALSE(runs_eagerly());
}

TEST(Check, GivesBothSidesTheSameElementsUntilTheDataEnds) {
  const Variable sum("sum", torch::zeros({}, torch::kLong), {.trainable = false});
  Iterator numbers = Dataset::range(1, 8).iterator();
  const auto add =
      function("add", [&](Iterator& numbers) { sum.assign_add(numbers.next() * numbers.next()); });
  const CheckReport report = check(add, {}, numbers);
  EXPECT_TRUE(report.equal) << report.to_string();
  EXPECT_EQ(report.steps_compared, 3);
  EXPECT_EQ(sum.read().item<int64_t>(), 0);
  EXPECT_EQ(numbers.next().item<int64_t>(), 1);
}

TEST(Check, RejectsVariablesOfParameterServers) {
  InProcessTestCluster cluster({.workers = 0, .ps = 1});
  const ParameterServers servers(cluster.spec());
  const auto scope = servers.scope();
  const Variable shared("shared", torch::zeros({}));
  const auto step = function("step", [&] { return shared.read() + 1; });
  EXPECT_THAT(error_text([&] { check(step, {}); }),
              HasSubstr("function 'step': it cannot be compared with eager code: its variable "
                        "'shared' lives on /job:ps/task:0"));
}

TEST(Check, ComparesASessionOverTwoTasksWithEagerCode) {
  InProcessTestCluster cluster({.workers = 2, .ps = 0});
  Session session(cluster.target({"worker", 0}));
  CheckedTraining training;
  {
    const DeviceScope on("/job:worker/task:1");
    track(*training.net->second, "second");
  }
  const auto step = training.make_step();
  // The session is ahead of the program.
  for (int i = 0; i < 3; ++i) session.run(step, training.x, training.y);
  const auto read = function("read", [&] {
    std::vector<Tensor> contents;
    for (const Variable& variable : training.state()) {
      contents.push_back(variable.read().detach().clone());
    }
    return contents;
  });
  const std::vector<Tensor> before = session.run(read);
  const CheckReport report =
      check(step, {.steps = 10, .session = &session}, training.x, training.y);
  EXPECT_TRUE(report.equal) << report.to_string();
  EXPECT_EQ(report.steps_compared, 10);
  expect_equal_tensors(session.run(read), before);
  EXPECT_EQ(step.step(), 3u);
}

TEST(Check, ReportsADifferenceInASession) {
  InProcessTestCluster cluster({.workers = 2, .ps = 0});
  Session session(cluster.target({"worker", 0}));
  int calls = 0;
  const Variable sum("sum", torch::zeros({3}));
  const auto step = function("step",
                             [&](const Tensor& x) {
                               const DeviceScope on("/job:worker/task:1");
                               sum.assign_add(x * static_cast<double>(++calls));
                             },
                             {.check_capture = false});
  const CheckReport report = check(step, {.session = &session}, torch::ones({3}));
  EXPECT_EQ(report.step, 0);
  EXPECT_EQ(report.object, "variable 'sum'");
  EXPECT_THAT(report.op, HasSubstr("operator 'aten::mul"));
}

TEST(Check, StartsFromTheContentsThatASessionHolds) {
  InProcessTestCluster cluster({.workers = 1, .ps = 0});
  Session session(cluster.target({"worker", 0}));
  const Variable sum("sum", torch::zeros({3}));
  const auto step = function("step", [&](const Tensor& x) {
    sum.assign_add(x);
    return sum.read() * 2;
  });
  const Tensor x = torch::ones({3});
  session.run(step, x);
  EXPECT_THAT(error_text([&] { check(step, {}, x); }),
              HasSubstr("pass the session to check() as CheckOptions::session"));
  const CheckReport report = check(step, {.session = &session}, x);
  EXPECT_TRUE(report.equal) << report.to_string();
  // The session still holds the contents, and they are what they were.
  EXPECT_TRUE(torch::equal(sum.read(), x));
  EXPECT_TRUE(torch::equal(session.run(step, x), x * 4));
}

TEST(Check, FollowsFunctionsInsideOfTheFunction) {
  CheckedTraining training;
  training.optimizer.emplace(training.net, AdamOptions{.lr = 0.01});
  const auto forward =
      function("forward", [&](const Tensor& x) { return training.net->forward(x); });
  const auto step = function("step", [&](const Tensor& x, const Tensor& y) {
    const Tensor loss = torch::mse_loss(forward(x), y);
    training.optimizer->minimize(loss);
    return loss;
  });
  const CheckReport report = check(step, {.steps = 3}, training.x, training.y);
  EXPECT_TRUE(report.equal) << report.to_string();
  EXPECT_EQ(forward.step(), 0u);
}

}  // namespace
}  // namespace trireme
