// Compares optimizers on servers with torch::optim in one process, on recorded gradients. FTRL and
// the rules for rows, which LibTorch does not have, are compared with references written here.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>

#include "trireme/optim/optimizer.h"
#include "trireme/optim/schedule.h"
#include "trireme/ps/test_servers.h"
#include "trireme/testing/relative_distance.h"

namespace trireme {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace o = torch::optim;

constexpr int kSteps = 100;
constexpr uint64_t kOptimizerWriter = 5;

Tensors initial_values() {
  torch::manual_seed(1);
  return {torch::randn({20, 10}), torch::randn({11}), torch::randn({7, 4, 5})};
}

Tensor recorded_gradient(int step, const Tensor& like) {
  torch::Generator generator = at::detail::createCPUGenerator(step * 31 + like.numel());
  return torch::randn(like.sizes(), generator, like.options());
}

// Variables on servers that are trained by the rule of `recipe`.
class OnServers {
 public:
  OnServers(TestServers& servers, const Tensors& initial, const Optimizer& recipe, int64_t shards)
      : client_(servers.client()) {
    ShardPlacer placer(client_->servers(), Placement::kBalanced, FixedPartitioner(shards));
    std::vector<VariableSpec> specs;
    for (size_t i = 0; i < initial.size(); ++i) {
      specs.push_back(
          {"v" + std::to_string(i), initial[i].sizes().vec(), initial[i].scalar_type()});
    }
    const auto layouts = placer.place(specs);
    std::vector<PsClient::PlacedVariable> made;
    for (size_t i = 0; i < initial.size(); ++i) {
      made.push_back({.layout = layouts[i], .initial = initial[i]});
    }
    variables_ = value_or_throw(client_->create(made));
    throw_if_error(client_->set_optimizer(variables_, internal::Access<Optimizer>::rule(recipe)));
    throw_if_error(client_->begin_writer(kOptimizerWriter));
  }

  void push(const Tensors& gradients, std::optional<double> lr = std::nullopt) {
    std::vector<PsPush> pushes;
    for (size_t i = 0; i < gradients.size(); ++i) {
      pushes.push_back(
          {.variable = variables_[i], .kind = Update::Kind::kGradient, .values = gradients[i]});
    }
    throw_if_error(client_->push(
        pushes, {.id = {kOptimizerWriter, sequence_, 0}, .watermark = sequence_, .lr = lr}));
    ++sequence_;
  }

  Tensors pull() {
    std::vector<PsPull> pulls;
    for (const PsVariable& variable : variables_) pulls.push_back({variable});
    return value_or_throw(client_->pull(pulls));
  }

 private:
  std::unique_ptr<PsClient> client_;
  std::vector<PsVariable> variables_;
  uint64_t sequence_ = 0;
};

struct Pair {
  std::string name;
  Optimizer ours;
  std::function<std::unique_ptr<o::Optimizer>(const Tensors&)> theirs;
};

template <typename Theirs, typename Options>
Pair pair(std::string name, const Optimizer& ours, Options theirs) {
  return {std::move(name), ours, [theirs](const Tensors& parameters) {
            return std::make_unique<Theirs>(parameters, theirs);
          }};
}

std::vector<Pair> pairs() {
  return {
      pair<o::SGD>("Sgd", Sgd({.lr = 0.1}), o::SGDOptions(0.1)),
      pair<o::SGD>("Decay", Sgd({.lr = 0.1, .weight_decay = 0.01}),
                   o::SGDOptions(0.1).weight_decay(0.01)),
      pair<o::SGD>("Momentum", Sgd({.lr = 0.1, .momentum = 0.9}), o::SGDOptions(0.1).momentum(0.9)),
      pair<o::SGD>("Nesterov", Sgd({.lr = 0.1, .momentum = 0.9, .nesterov = true}),
                   o::SGDOptions(0.1).momentum(0.9).nesterov(true)),
      pair<o::Adagrad>("Adagrad", Adagrad({.lr = 0.1, .initial_accumulator = 0.1}),
                       o::AdagradOptions(0.1).initial_accumulator_value(0.1)),
      pair<o::Adam>("Adam", Adam({.lr = 0.01}), o::AdamOptions(0.01)),
      pair<o::AdamW>("AdamW", AdamW({.lr = 0.01}), o::AdamWOptions(0.01)),
      pair<o::RMSprop>("RmsProp", RmsProp({.lr = 0.01, .momentum = 0.9, .centered = true}),
                       o::RMSpropOptions(0.01).momentum(0.9).centered(true)),
  };
}

TEST(ServerOptimizer, MatchesTorchOver100StepsWholeAndSharded) {
  for (const Pair& pair : pairs()) {
    TestServers servers(2);
    const Tensors initial = initial_values();
    Tensors parameters;
    for (const Tensor& value : initial) parameters.push_back(value.clone().requires_grad_(true));
    const auto theirs = pair.theirs(parameters);
    for (int step = 0; step < kSteps; ++step) {
      for (Tensor& parameter : parameters) {
        parameter.mutable_grad() = recorded_gradient(step, parameter.detach());
      }
      theirs->step();
    }
    for (int64_t shards : {1, 3}) {
      servers.start(0);
      servers.start(1);
      OnServers ours(servers, initial, pair.ours, shards);
      for (int step = 0; step < kSteps; ++step) {
        Tensors gradients;
        for (const Tensor& value : initial) gradients.push_back(recorded_gradient(step, value));
        ours.push(gradients);
      }
      const Tensors result = ours.pull();
      for (size_t i = 0; i < result.size(); ++i) {
        EXPECT_LE(relative_distance(result[i], parameters[i].detach()), 1e-6)
            << pair.name << ", variable " << i << ", " << shards << " shards";
      }
    }
  }
}

TEST(ServerOptimizer, FollowsASchedule) {
  TestServers servers(1);
  const Schedule schedule = warm_up(10, cosine_decay({.lr = 0.1, .steps = kSteps}));
  Tensor parameter = torch::ones({8}).requires_grad_(true);
  o::Adam theirs({parameter}, o::AdamOptions(0.5));
  OnServers ours(servers, {torch::ones({8})}, Adam({.lr = 0.5}), 1);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor gradient = recorded_gradient(step, parameter.detach());
    parameter.mutable_grad() = gradient;
    for (auto& group : theirs.param_groups()) group.options().set_lr(schedule(step));
    theirs.step();
    ours.push({gradient}, schedule(step));
  }
  EXPECT_LE(relative_distance(ours.pull()[0], parameter.detach()), 1e-6);
}

// The reference computes each element by the formula of the paper.
TEST(ServerOptimizer, FtrlMatchesTheReference) {
  constexpr double kLr = 0.1, kL1 = 0.05, kL2 = 0.01;
  const Tensor initial = initial_values()[0].to(torch::kDouble);
  Tensor expected = initial.clone();
  std::vector<double> squares(initial.numel(), 0.1), linear(initial.numel(), 0);
  double* w = expected.data_ptr<double>();
  for (int step = 0; step < kSteps; ++step) {
    const Tensor gradient = recorded_gradient(step, initial);
    const double* g = gradient.data_ptr<double>();
    for (int64_t i = 0; i < initial.numel(); ++i) {
      const double sum = squares[i] + g[i] * g[i];
      linear[i] += g[i] - (std::sqrt(sum) - std::sqrt(squares[i])) / kLr * w[i];
      squares[i] = sum;
      w[i] = std::abs(linear[i]) <= kL1
                 ? 0
                 : ((linear[i] > 0 ? kL1 : -kL1) - linear[i]) / (std::sqrt(sum) / kLr + 2 * kL2);
    }
  }
  for (int64_t shards : {1, 3}) {
    TestServers servers(2);
    OnServers ours(servers, {initial}, Ftrl({.lr = kLr, .l1 = kL1, .l2 = kL2}), shards);
    for (int step = 0; step < kSteps; ++step) ours.push({recorded_gradient(step, initial)});
    EXPECT_LE(relative_distance(ours.pull()[0], expected), 1e-6) << shards;
  }
}

struct Step {
  Tensor ids, rows;
};

std::vector<Step> recorded_rows(const Tensor& table) {
  torch::manual_seed(3);
  std::vector<Step> steps;
  for (int step = 0; step < kSteps; ++step) {
    steps.push_back({torch::randint(0, table.size(0), {12}, torch::kLong),
                     torch::randn({12, table.size(1)}, torch::kDouble)});
  }
  return steps;
}

// Returns the gradient of each row, by row id. Gradients of one row are added up.
std::map<int64_t, Tensor> by_row(const Step& step) {
  std::map<int64_t, Tensor> rows;
  for (int64_t i = 0; i < step.ids.numel(); ++i) {
    Tensor& row = rows[step.ids[i].item<int64_t>()];
    row = row.defined() ? row + step.rows[i] : step.rows[i];
  }
  return rows;
}

// Applies sparse Adam to `table`. Each shard has its own step: it counts the pushes that change it.
void adam_rows_reference(Tensor& table, const std::vector<Step>& steps, int64_t shards) {
  Tensor mean = torch::zeros_like(table), square = torch::zeros_like(table);
  std::vector<int> count(shards, 0);
  for (const Step& step : steps) {
    const auto rows = by_row(step);
    std::vector<bool> touched(shards, false);
    for (const auto& [id, gradient] : rows) {
      touched[shard_of_row(id, table.size(0), shards)] = true;
    }
    for (int64_t s = 0; s < shards; ++s) count[s] += touched[s];
    for (const auto& [id, gradient] : rows) {
      const int t = count[shard_of_row(id, table.size(0), shards)];
      mean[id] = 0.9 * mean[id] + 0.1 * gradient;
      square[id] = 0.999 * square[id] + 0.001 * gradient * gradient;
      table[id] -= 0.05 * (mean[id] / (1 - std::pow(0.9, t))) /
                   ((square[id] / (1 - std::pow(0.999, t))).sqrt() + 1e-8);
    }
  }
}

TEST(ServerOptimizer, SparseAdamMatchesTheReference) {
  const Tensor initial = torch::ones({50, 8}, torch::kDouble);
  const std::vector<Step> steps = recorded_rows(initial);
  for (int64_t shards : {1, 3}) {
    Tensor expected = initial.clone();
    adam_rows_reference(expected, steps, shards);
    TestServers servers(2);
    OnServers ours(servers, {initial}, Adam({.lr = 0.05}), shards);
    for (const Step& step : steps) {
      ours.push({torch::sparse_coo_tensor(step.ids.unsqueeze(0), step.rows, initial.sizes())});
    }
    EXPECT_LE(relative_distance(ours.pull()[0], expected), 1e-6) << shards;
  }
}

TEST(ServerOptimizer, SparseFtrlChangesOnlyTheGivenRows) {
  const Tensor initial = torch::ones({6, 2});
  TestServers servers(2);
  OnServers ours(servers, {initial}, Ftrl({.lr = 0.1}), 2);
  const Tensor ids = torch::tensor({1, 4});
  ours.push({torch::sparse_coo_tensor(ids.unsqueeze(0), torch::ones({2, 2}), {6, 2})});
  const Tensor result = ours.pull()[0];
  for (int row : {0, 2, 3, 5}) EXPECT_TRUE(result[row].equal(initial[row])) << row;
  for (int row : {1, 4}) EXPECT_FALSE(result[row].equal(initial[row])) << row;
}

// AMSGrad is not defined for rows. The first variable of the push must not change because of that.
TEST(ServerOptimizer, APushThatTheRuleRejectsChangesNothing) {
  TestServers servers(1);
  const Tensor initial = torch::ones({4, 2});
  OnServers ours(servers, {initial, initial}, Adam({.lr = 1, .amsgrad = true}), 1);
  const Tensor sparse =
      torch::sparse_coo_tensor(torch::tensor({1}).unsqueeze(0), torch::ones({1, 2}), {4, 2});
  for (int i = 0; i < 2; ++i) {
    try {
      ours.push({torch::ones({4, 2}), sparse});
      ADD_FAILURE() << "attempt " << i << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(error.origin().object, "variable 'v1'");
    }
    for (const Tensor& value : ours.pull()) EXPECT_TRUE(value.equal(initial)) << "attempt " << i;
  }
  // The rejected push has left no trace: the same sequence is applied, as the first update.
  ours.push({torch::ones({4, 2}), torch::ones({4, 2})});
  for (const Tensor& value : ours.pull()) EXPECT_LE(value.abs().max().item<float>(), 1e-6);
}

TEST(ServerOptimizer, ARateIsForOnePushOnly) {
  TestServers servers(1);
  OnServers ours(servers, {torch::zeros({2})}, Sgd({.lr = 1}), 1);
  ours.push({torch::ones({2})}, 0.25);
  ours.push({torch::ones({2})});
  EXPECT_TRUE(ours.pull()[0].equal(torch::full({2}, -1.25)));
}

TEST(Rules, AreRebuiltFromTheirNameAndOptions) {
  for (const Pair& pair : pairs()) {
    const internal::UpdateRule& rule = internal::Access<Optimizer>::rule(pair.ours);
    const auto copy = internal::make_rule(rule.name(), rule.options());
    EXPECT_EQ(copy->name(), rule.name());
    EXPECT_EQ(copy->options(), rule.options());
    EXPECT_EQ(copy->slots().size(), rule.slots().size());
  }
  EXPECT_THROW(internal::make_rule("newton", {}), Error);
  EXPECT_THROW(internal::make_rule("sgd", {{"beta1", 0.1}}), Error);
}

}  // namespace
}  // namespace trireme
