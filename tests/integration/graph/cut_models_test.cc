// A model whose stages are on different tasks trains as on one task: losses, parameters, buffers
// and optimizer state differ by at most 1e-6 after 20 steps. TRIREME_FULL selects the full model
// sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/integration/graph/models.h"
#include "trireme/capture/device_scope.h"
#include "trireme/function/function.h"
#include "trireme/function/module.h"
#include "trireme/optim/optimizer.h"
#include "trireme/runtime/session.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/relative_distance.h"

namespace trireme {
namespace {

using models::Model;
using torch::Tensor;

constexpr int kCutSteps = 20;

struct CutCase {
  std::string model, optimizer;
  int tasks;
};

void PrintTo(const CutCase& c, std::ostream* out) {
  *out << c.model << " with " << c.optimizer << " over " << c.tasks << " tasks";
}

struct Trained {
  std::vector<Tensor> losses;
  std::map<std::string, Tensor> state;  // parameters, buffers and optimizer state
  double moved = 0;                     // sum of the distances from the initial state
};

// Trains on the tasks of the cluster, or in this process if `cluster` is null.
Trained train(const CutCase& c, TestCluster* cluster) {
  int stages = 1;
  const auto scope_of = [&](int stage) -> std::shared_ptr<void> {
    if (cluster == nullptr) return nullptr;
    return std::make_shared<DeviceScope>(
        absl::StrCat("/job:worker/task:", stage * c.tasks / stages));
  };
  const bool small = std::getenv("TRIREME_FULL") == nullptr;
  const Model model = models::make_model(c.model, torch::kFloat, small, scope_of);
  stages = model.stages;
  // Places the variables of each module with its stage. Children come first, because a module also
  // lists the variables of its children.
  auto modules = model.module->named_modules().items();
  std::reverse(modules.begin(), modules.end());
  for (const auto& module : modules) {
    const auto scope = scope_of(model.stage_of(module.key()));
    track(*module.value(), module.key());
  }
  const std::vector<Variable> variables = track(model.module);
  const Optimizer optimizer = c.optimizer == "adam"
                                  ? Optimizer(Adam(variables, {.lr = 0.001}))
                                  : Optimizer(Sgd(variables, {.lr = 0.05, .momentum = 0.9}));
  const auto step = function("step",
                             [&](const Tensor& x, const Tensor& y) {
                               const Tensor loss = model.loss(x, y);
                               optimizer.minimize(loss);
                               return loss;
                             },
                             {.seed = 42});
  std::vector<Variable> all = variables;
  for (const Variable& v : optimizer.state()) all.push_back(v);
  const auto read = function("read", [&] {
    std::vector<Tensor> contents;
    for (const Variable& v : all) contents.push_back(v.read().detach().clone());
    return contents;
  });

  std::optional<Session> session;
  if (cluster != nullptr) session.emplace(cluster->target({"worker", 0}));
  const std::vector<Tensor> initial = session ? session->run(read) : read();
  Trained trained;
  for (int i = 0; i < kCutSteps; ++i) {
    const auto [x, y] = model.batch(i);
    trained.losses.push_back(session ? session->run(step, x, y) : step(x, y));
  }
  const std::vector<Tensor> contents = session ? session->run(read) : read();
  for (size_t i = 0; i < all.size(); ++i) {
    trained.state[all[i].name()] = contents[i];
    trained.moved += (contents[i] - initial[i]).to(torch::kDouble).norm().item<double>();
  }
  return trained;
}

class CutModels : public testing::TestWithParam<CutCase> {};

TEST_P(CutModels, TrainAsOnOneTask) {
  const Trained one = train(GetParam(), nullptr);
  InProcessTestCluster cluster({.workers = GetParam().tasks, .ps = 0});
  const Trained cut = train(GetParam(), &cluster);
  double worst = 0;
  for (int i = 0; i < kCutSteps; ++i) {
    const double off = relative_distance(cut.losses[i], one.losses[i]);
    EXPECT_LE(off, 1e-6) << "loss of step " << i;
    worst = std::max(worst, off);
  }
  ASSERT_EQ(cut.state.size(), one.state.size());
  for (const auto& [name, tensor] : cut.state) {
    ASSERT_TRUE(one.state.contains(name)) << name;
    const double off = relative_distance(tensor, one.state.at(name));
    EXPECT_LE(off, 1e-6) << name;
    worst = std::max(worst, off);
  }
  EXPECT_GT(cut.moved, 0);
  // Each task ran its share of the operators.
  for (const TaskId& task : cluster.spec().all_tasks()) {
    EXPECT_GT(cluster.describe(task).counters.at("step_operators_run"), 10u * kCutSteps) << task;
  }
  std::printf("  %-11s %-8s over %d tasks: %zu variables, %s (worst %.3g), loss %.4f -> %.4f\n",
              GetParam().model.c_str(), GetParam().optimizer.c_str(), GetParam().tasks,
              cut.state.size(), worst == 0 ? "bitwise equal" : "nearly equal", worst,
              one.losses.front().item<double>(), one.losses.back().item<double>());
}

INSTANTIATE_TEST_SUITE_P(
    All, CutModels,
    testing::Values(CutCase{"conv", "momentum", 2}, CutCase{"conv", "momentum", 3},
                    CutCase{"conv", "adam", 2}, CutCase{"conv", "adam", 3},
                    CutCase{"transformer", "momentum", 2}, CutCase{"transformer", "momentum", 3},
                    CutCase{"transformer", "adam", 2}, CutCase{"transformer", "adam", 3}),
    [](const auto& info) {
      return absl::StrCat(info.param.model, "_", info.param.optimizer, "_", info.param.tasks);
    });

}  // namespace
}  // namespace trireme
