#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/base/error.h"
#include "trireme/function/function.h"
#include "trireme/function/replicas.h"
#include "trireme/optim/clipping.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/update_rule.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/relative_distance.h"

namespace trireme {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kSteps = 100;

Tensors initial_values() {
  torch::manual_seed(1);
  return {torch::randn({20, 10}), torch::randn({10}), torch::randn({3, 4, 5})};
}

Tensor recorded_gradient(int step, const Tensor& like) {
  torch::Generator generator = at::detail::createCPUGenerator(step * 31 + like.numel());
  return torch::randn(like.sizes(), generator, torch::kFloat);
}

struct Pair {
  std::string name;
  std::function<Optimizer(const std::vector<Variable>&)> ours;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)> theirs;
};

void PrintTo(const Pair& pair, std::ostream* out) {
  *out << pair.name;
}

class AgainstTorch : public testing::TestWithParam<Pair> {};

// Our optimizer runs in a captured step. Both get the same gradients.
TEST_P(AgainstTorch, GivesTheSameParametersAfter100Steps) {
  std::vector<Variable> variables;
  Tensors parameters;
  for (const Tensor& value : initial_values()) {
    variables.emplace_back("v", value);
    parameters.push_back(value.clone().requires_grad_(true));
  }
  const Optimizer ours = GetParam().ours(variables);
  const auto theirs = GetParam().theirs(parameters);
  auto step =
      function("step", [ours](const Tensors& gradients) { ours.apply_gradients(gradients); });
  for (int i = 0; i < kSteps; ++i) {
    Tensors gradients;
    for (Tensor& parameter : parameters) {
      gradients.push_back(recorded_gradient(i, parameter));
      parameter.mutable_grad() = gradients.back();
    }
    step(gradients);
    theirs->step();
  }
  EXPECT_EQ(step.captures(), 1);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_LE(relative_distance(variables[i].read().detach(), parameters[i].detach()), 1e-6) << i;
  }
}

template <typename Ours, typename OurOptions, typename Theirs, typename TheirOptions>
Pair pair(std::string name, OurOptions ours, TheirOptions theirs) {
  return {
      std::move(name),
      [ours](const std::vector<Variable>& variables) { return Ours(variables, ours); },
      [theirs](const Tensors& parameters) { return std::make_unique<Theirs>(parameters, theirs); }};
}

namespace o = torch::optim;
INSTANTIATE_TEST_SUITE_P(
    All, AgainstTorch,
    testing::Values(
        pair<Sgd, SgdOptions, o::SGD>("Sgd", {.lr = 0.1}, o::SGDOptions(0.1)),
        pair<Sgd, SgdOptions, o::SGD>("Momentum", {.lr = 0.1, .momentum = 0.9},
                                      o::SGDOptions(0.1).momentum(0.9)),
        pair<Sgd, SgdOptions, o::SGD>(
            "Nesterov", {.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01},
            o::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01)),
        pair<Adagrad, AdagradOptions, o::Adagrad>("Adagrad", {.lr = 0.1}, o::AdagradOptions(0.1)),
        pair<Adagrad, AdagradOptions, o::Adagrad>(
            "AdagradDecay",
            {.lr = 0.1, .lr_decay = 0.01, .weight_decay = 0.01, .initial_accumulator = 0.1},
            o::AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.01).initial_accumulator_value(
                0.1)),
        pair<Adam, AdamOptions, o::Adam>("Adam", {.lr = 0.01}, o::AdamOptions(0.01)),
        pair<Adam, AdamOptions, o::Adam>("AdamAmsgrad",
                                         {.lr = 0.01, .weight_decay = 0.01, .amsgrad = true},
                                         o::AdamOptions(0.01).weight_decay(0.01).amsgrad(true)),
        pair<AdamW, AdamWOptions, o::AdamW>("AdamW", {.lr = 0.01}, o::AdamWOptions(0.01)),
        pair<RmsProp, RmsPropOptions, o::RMSprop>("RmsProp", {.lr = 0.01}, o::RMSpropOptions(0.01)),
        pair<RmsProp, RmsPropOptions, o::RMSprop>(
            "RmsPropCentered",
            {.lr = 0.01, .weight_decay = 0.01, .momentum = 0.9, .centered = true},
            o::RMSpropOptions(0.01).weight_decay(0.01).momentum(0.9).centered(true))),
    [](const auto& info) { return info.param.name; });

// Reference for sparse gradients: applies the dense rule row by row, to the rows that the gradient
// has entries for.
struct RowReference {
  Tensor table, mean, square;

  void adam(const Tensor& ids, const Tensor& gradients, int step, double lr) {
    std::map<int64_t, Tensor> rows;
    for (int64_t i = 0; i < ids.numel(); ++i) {
      Tensor& row = rows[ids[i].item<int64_t>()];
      row = row.defined() ? row + gradients[i] : gradients[i];
    }
    for (const auto& [id, gradient] : rows) {
      mean[id] = 0.9 * mean[id] + 0.1 * gradient;
      square[id] = 0.999 * square[id] + 0.001 * gradient * gradient;
      const Tensor corrected = mean[id] / (1 - std::pow(0.9, step));
      const Tensor root = (square[id] / (1 - std::pow(0.999, step))).sqrt() + 1e-8;
      table[id] -= lr * corrected / root;
    }
  }
};

TEST(SparseAdam, MatchesAReferenceImplementation) {
  torch::manual_seed(2);
  const Tensor start = torch::randn({50, 8}, torch::kDouble);
  Variable table("table", start);
  const Adam optimizer({table}, {.lr = 0.05});
  auto step = function("step", [table, optimizer](const Tensor& ids, const Tensor& target) {
    Tensor rows = torch::embedding(table.read(), ids, -1, false, /*sparse=*/true);
    Tensor loss = (rows - target).pow(2).sum() / 2;
    optimizer.minimize(loss);
    return loss;
  });
  RowReference reference{start.clone(), torch::zeros_like(start), torch::zeros_like(start)};
  for (int i = 0; i < 50; ++i) {
    const Tensor ids = torch::randint(0, 50, {12}, torch::kLong),
                 target = torch::randn({12, 8}, torch::kDouble);
    const Tensor gradients = reference.table.index_select(0, ids) - target;
    step(ids, target);
    reference.adam(ids, gradients, i + 1, 0.05);
  }
  EXPECT_EQ(step.captures(), 1);
  EXPECT_LE(relative_distance(table.read().detach(), reference.table), 1e-9);
}

TEST(SparseGradients, LeaveOtherRowsAlone) {
  const auto check = [](const auto& make) {
    Variable table("table", torch::ones({6, 2}));
    const Optimizer optimizer = make(std::vector<Variable>{table});
    auto step = function("step", [table, optimizer](const Tensor& ids) {
      optimizer.minimize(torch::embedding(table.read(), ids, -1, false, true).sum());
    });
    for (int i = 0; i < 3; ++i) step(torch::tensor({1, 4, 4}));
    const Tensor result = table.read().detach();
    for (int row : {0, 2, 3, 5}) EXPECT_TRUE(result[row].equal(torch::ones({2}))) << row;
    for (int row : {1, 4}) EXPECT_TRUE((result[row] < 1).all().template item<bool>()) << row;
  };
  check([](auto v) { return Sgd(v, {.lr = 0.1}); });
  check([](auto v) { return Sgd(v, {.lr = 0.1, .momentum = 0.9, .nesterov = true}); });
  check([](auto v) { return Adagrad(v, {.lr = 0.1}); });
  check([](auto v) { return Adam(v, {.lr = 0.1}); });
  check([](auto v) { return AdamW(v, {.lr = 0.1}); });
  check([](auto v) { return Ftrl(v, {.lr = 0.1}); });
  check([](auto v) { return RmsProp(v, {.lr = 0.1, .momentum = 0.5, .centered = true}); });
}

TEST(Optimizer, SetLrNeedsNoOtherCapture) {
  Variable w("w", torch::zeros({1}));
  const Sgd optimizer({w}, {.lr = 1});
  auto step = function(
      "step", [w, optimizer](const Tensor& x) { optimizer.minimize((x * w.read()).sum()); });
  step(torch::ones({1}));
  optimizer.set_lr(10);
  step(torch::ones({1}));
  EXPECT_EQ(w.read().item<float>(), -11);
  EXPECT_EQ(step.captures(), 1);
  EXPECT_EQ(optimizer.lr(), 10);
}

TEST(Optimizer, KeepsTheScheduleOfItsOptions) {
  Variable w("w", torch::ones({2}));
  const Sgd followed({w}, {.lr = exponential_decay({.lr = 1, .factor = 0.5, .steps = 1})});
  EXPECT_EQ(followed.lr(), 1);  // until somebody sets it
  EXPECT_EQ(followed.schedule()(2), 0.25);
  const Adam own({.lr = [](int64_t step) { return 1.0 / (step + 2); }});
  EXPECT_EQ(own.lr(), 0.5);
  EXPECT_EQ(own.schedule()(2), 0.25);
  EXPECT_EQ(Adam({.lr = 0.1}).schedule(), nullptr);
}

// Returns the options of an optimizer by name.
std::map<std::string, double> options_of(const Optimizer& optimizer) {
  return internal::Access<Optimizer>::rule(optimizer).options();
}

TEST(Optimizer, TakesTheOptionsOfTorch) {
  namespace o = torch::optim;
  EXPECT_EQ(options_of(Sgd(o::SGDOptions(0.5).momentum(0.9).nesterov(true).weight_decay(0.1))),
            options_of(Sgd({.lr = 0.5, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1})));
  EXPECT_EQ(options_of(Adam(o::AdamOptions(0.5).betas({0.7, 0.8}).eps(0.1).amsgrad(true))),
            options_of(Adam({.lr = 0.5, .beta1 = 0.7, .beta2 = 0.8, .eps = 0.1, .amsgrad = true})));
  EXPECT_EQ(options_of(AdamW(o::AdamWOptions(0.5).weight_decay(0.2))),
            options_of(AdamW({.lr = 0.5, .weight_decay = 0.2})));
  EXPECT_EQ(options_of(Adagrad(o::AdagradOptions(0.5).lr_decay(0.1).initial_accumulator_value(2))),
            options_of(Adagrad({.lr = 0.5, .lr_decay = 0.1, .initial_accumulator = 2})));
  torch::nn::Linear net(2, 1);
  EXPECT_EQ(
      options_of(RmsProp(net, o::RMSpropOptions(0.5).alpha(0.8).momentum(0.1).centered(true))),
      options_of(RmsProp({.lr = 0.5, .alpha = 0.8, .momentum = 0.1, .centered = true})));
  EXPECT_EQ(Adam(track(net), o::AdamOptions(0.5)).variables().size(), 2);
  EXPECT_EQ(error_text([] { Sgd(o::SGDOptions(0.5).momentum(0.9).dampening(0.1)); }),
            "tr::Sgd has no dampening; make torch::optim::SGDOptions with dampening(0)");
}

TEST(Optimizer, StepUsesGradientsOfBackward) {
  Variable w("w", torch::zeros({1})), unused("unused", torch::ones({1}));
  const Adam optimizer({w, unused}, {.lr = 0.1});
  auto step = function("step", [w, optimizer](const Tensor& x) {
    optimizer.zero_grad();
    (x * w.read()).sum().backward();
    optimizer.step();
    return w.read();
  });
  EXPECT_NEAR(step(torch::ones({1})).item<float>(), -0.1, 1e-6);
  EXPECT_NEAR(step(torch::ones({1})).item<float>(), -0.2, 1e-6);
  EXPECT_EQ(unused.read().item<float>(), 1);
}

TEST(Optimizer, ClipsTheNormOfAllGradientsTogether) {
  for (double scale : {0.001, 1.0}) {
    Tensors ours{torch::full({3}, 3 * scale), Tensor(), torch::full({4, 1}, 4 * scale)};
    torch::nn::utils::clip_grad_norm_(Tensors{}, 1.0);
    Tensor a = torch::zeros({3}).requires_grad_(true),
           b = torch::zeros({4, 1}).requires_grad_(true);
    a.mutable_grad() = ours[0].clone();
    b.mutable_grad() = ours[2].clone();
    const double theirs = torch::nn::utils::clip_grad_norm_({a, b}, 1.0);
    EXPECT_NEAR(clip_grad_norm(ours, 1.0).item<double>(), theirs, 1e-5 * theirs);
    EXPECT_TRUE(ours[0].allclose(a.grad()));
    EXPECT_TRUE(ours[2].allclose(b.grad()));
  }
}

TEST(Optimizer, ClipsEachNormAndEachValue) {
  const Tensor indices = torch::tensor({1, 1}).unsqueeze(0);
  const Tensors given = {torch::tensor({3.0, 4.0}), Tensor(), torch::tensor({0.3}),
                         torch::sparse_coo_tensor(indices, torch::ones({2, 1}), {3, 1})};
  Tensors by_norm = given, by_value = given;
  clip_each_grad_norm(by_norm, 1.0);
  EXPECT_TRUE(by_norm[0].allclose(torch::tensor({0.6, 0.8}))) << by_norm[0];
  EXPECT_FALSE(by_norm[1].defined());
  EXPECT_TRUE(by_norm[2].equal(given[2]));
  clip_grad_value(by_value, 1.0);
  EXPECT_TRUE(by_value[0].equal(torch::ones({2})));
  EXPECT_TRUE(by_value[2].equal(given[2]));
  EXPECT_EQ(by_value[3].to_dense()[1].item<float>(), 1)
      << "the limit is for the sum of both parts of an element";
}

TEST(Optimizer, ClipsInACapturedStep) {
  Variable w("w", torch::zeros({4})), table("table", torch::zeros({3, 2}));
  const Sgd optimizer({w, table}, {.lr = 1});
  auto step = function("step", [=](const Tensor& x, const Tensor& ids) {
    Tensor loss = (x * w.read()).sum() + torch::embedding(table.read(), ids, -1, false, true).sum();
    optimizer.minimize(loss, {.clip_norm = 0.5});
  });
  step(torch::full({4}, 3.0), torch::tensor({0, 2}));
  const double moved =
      std::sqrt(w.read().pow(2).sum().item<double>() + table.read().pow(2).sum().item<double>());
  EXPECT_NEAR(moved, 0.5, 1e-5);
  EXPECT_EQ(table.read()[1].abs().sum().item<float>(), 0);
}

TEST(Optimizer, RecipeIsBoundLater) {
  const Sgd recipe({.lr = 0.5});
  EXPECT_FALSE(recipe.is_bound());
  EXPECT_THROW(recipe.minimize(torch::ones({})), Error);
  Variable w("w", torch::zeros({1}));
  const Optimizer bound = recipe.bind({w});
  bound.minimize(w.read().sum());
  EXPECT_EQ(w.read().item<float>(), -0.5);
}

TEST(Optimizer, AppliesTheSumOfTheReplicasGradientsOnce) {
  const auto trained = [](const auto& make, int replicas, double clip_norm) {
    Variable w("w", torch::zeros({3}));
    const Optimizer optimizer = make(std::vector<Variable>{w});
    auto step = function("step", [=](const Tensor& x, const Tensor& y) {
      internal::for_each_replica(replicas, [&](int replica) {
        const int64_t share = x.size(0) / replicas;
        const auto mine = [&](const Tensor& all) { return all.narrow(0, replica * share, share); };
        const Tensor loss = torch::mse_loss(mine(x).matmul(w.read()), mine(y));
        optimizer.minimize(loss / replicas, {.clip_norm = clip_norm});
        optimizer.minimize((w.read() - 1).pow(2).sum() / replicas);
      });
    });
    torch::manual_seed(5);
    for (int i = 0; i < 20; ++i) step(torch::randn({8, 3}), torch::randn({8}));
    EXPECT_EQ(step.captures(), 1);
    return w.read().detach();
  };
  const auto sgd = [](auto v) { return Sgd(v, {.lr = 0.1}); };
  const auto adam = [](auto v) { return Adam(v, {.lr = 0.1}); };
  for (double clip_norm : {0.0, 0.3}) {
    EXPECT_LE(relative_distance(trained(sgd, 2, clip_norm), trained(sgd, 4, clip_norm)), 1e-5);
    EXPECT_LE(relative_distance(trained(adam, 2, clip_norm), trained(adam, 4, clip_norm)), 1e-5);
  }
}

TEST(Optimizer, AGradientThatAReplicaLeavesOutCountsAsZero) {
  Variable both("both", torch::zeros({2})), one("one", torch::zeros({2})),
      none("none", torch::zeros({2}));
  const Sgd optimizer({both, one, none}, {.lr = 1});
  internal::for_each_replica(2, [&](int replica) {
    Tensor loss = both.read().sum();
    if (replica == 1) loss = loss + 3 * one.read().sum();
    optimizer.minimize(loss);
  });
  EXPECT_TRUE(both.read().equal(torch::full({2}, -2.0)));
  EXPECT_TRUE(one.read().equal(torch::full({2}, -3.0)));
  EXPECT_TRUE(none.read().equal(torch::zeros({2})));
}

TEST(Optimizer, ReplicasReadTheValuesFromBeforeTheUpdate) {
  Variable w("w", torch::zeros({}));
  const Sgd optimizer({w}, {.lr = 1});
  std::vector<float> seen;
  internal::for_each_replica(2, [&](int) {
    Tensor gradient = torch::ones({});
    optimizer.apply_gradients({gradient});
    gradient.fill_(100);
    seen.push_back(w.read().item<float>());
    optimizer.set_lr(10);
  });
  EXPECT_EQ(seen, (std::vector<float>{0, 0}));
  EXPECT_EQ(w.read().item<float>(), -2);
  EXPECT_EQ(optimizer.lr(), 10);
}

TEST(Optimizer, RejectsReplicasThatMinimizeDifferently) {
  Variable v("v", torch::zeros({})), w("w", torch::zeros({}));
  const Sgd first({v}, {.lr = 1}), second({w}, {.lr = 1});
  auto step = function("step", [&](const Tensor& x) {
    internal::for_each_replica(2, [&](int replica) {
      first.minimize(v.read() * x);
      if (replica == 0) second.minimize(w.read() * x);
    });
  });
  try {
    step(torch::ones({}));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(error.origin().object, "the sgd optimizer of variable '" + w.name() + "'");
    EXPECT_NE(std::string(error.what())
                  .find("in function 'step' replica 1 calls nothing where replica 0 calls "
                        "minimize()"),
              std::string::npos)
        << error.what();
  }
}

TEST(SparseGradients, SummedOverReplicasLeaveOtherRowsAlone) {
  Variable table("table", torch::ones({6, 2}));
  const Adam optimizer({table}, {.lr = 0.1});
  auto step = function("step", [&](const Tensor& ids) {
    internal::for_each_replica(2, [&](int replica) {
      optimizer.minimize(torch::embedding(table.read(), ids[replica], -1, false, true).sum());
    });
  });
  step(torch::tensor({{0, 1}, {1, 4}}));
  const Tensor once = table.read().detach().clone();
  step(torch::tensor({{4, 4}, {5, 1}}));
  const Tensor twice = table.read().detach();
  EXPECT_TRUE(twice[0].equal(once[0])) << "with a dense gradient Adam would move this row";
  for (int row : {2, 3}) EXPECT_TRUE(twice[row].equal(torch::ones({2}))) << row;
  for (int row : {1, 4, 5}) EXPECT_TRUE((twice[row] < once[row]).all().item<bool>()) << row;
}

// The rows that a sparse gradient touches change as a variable of these rows alone would.
TEST(SparseGradients, WeightDecayIsThatOfTheTouchedRows) {
  const auto check = [](const char* name, const auto& make) {
    torch::manual_seed(5);
    const Tensor start = torch::randn({6, 2}, torch::kDouble), ids = torch::tensor({1, 4});
    Variable table("table", start.clone()), part("part", start.index_select(0, ids));
    const Optimizer sparse = make(std::vector<Variable>{table}),
                    dense = make(std::vector<Variable>{part});
    for (int i = 0; i < 3; ++i) {
      const Tensor values = torch::randn({3, 2}, torch::kDouble);
      sparse.apply_gradients(
          {torch::sparse_coo_tensor(torch::tensor({{1, 4, 4}}), values, start.sizes())});
      dense.apply_gradients({torch::stack({values[0], values[1] + values[2]})});
    }
    Tensor expected = start.clone();
    expected.index_copy_(0, ids, part.read().detach());
    EXPECT_LE(relative_distance(table.read().detach(), expected), 1e-6) << name;
    for (int row : {0, 2, 3, 5}) EXPECT_TRUE(table.read().detach()[row].equal(start[row])) << name;
  };
  check("sgd", [](auto v) { return Sgd(v, {.lr = 0.1, .weight_decay = 0.1}); });
  check("momentum", [](auto v) {
    return Sgd(v, {.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1});
  });
  check("adagrad", [](auto v) { return Adagrad(v, {.lr = 0.1, .weight_decay = 0.1}); });
  check("adam", [](auto v) { return Adam(v, {.lr = 0.1, .weight_decay = 0.1}); });
  check("adamw", [](auto v) { return AdamW(v, {.lr = 0.1, .weight_decay = 0.1}); });
  check("rmsprop", [](auto v) {
    return RmsProp(v, {.lr = 0.1, .weight_decay = 0.1, .momentum = 0.5, .centered = true});
  });
}

TEST(Optimizer, RejectsAmsGradWithSparseGradients) {
  Variable table("table", torch::ones({3, 2}));
  const Adam optimizer({table}, {.amsgrad = true});
  EXPECT_THROW(
      optimizer.minimize(torch::embedding(table.read(), torch::tensor({0}), -1, false, true).sum()),
      Error);
  EXPECT_TRUE(table.read().detach().equal(torch::ones({3, 2})));
}

}  // namespace
}  // namespace trireme
