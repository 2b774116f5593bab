// A captured training step that another process loads from a file trains like the same code run
// eagerly, and the optimizers train like those of torch::optim. TRIREME_FULL selects the full model
// sizes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/integration/graph/models.h"
#include "trireme/base/status.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/exec/random.h"
#include "trireme/function/function.h"
#include "trireme/graph/graph_file.h"
#include "trireme/optim/optimizer.h"
#include "trireme/tensor/codec.h"
#include "trireme/testing/relative_distance.h"

namespace trireme {
namespace {

using models::Model;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kSteps = 20;
constexpr uint64_t kSeed = 42;
// Attention has parameters whose gradients are zero except for rounding (a bias of the keys does
// not change the softmax). Adagrad divides by them, so with a smaller eps the results of any two
// orders of summation drift apart.
constexpr double kAdagradEps = 1e-6;

struct Case {
  std::string model, optimizer;
  double lr;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << " with " << c.optimizer;
}

Optimizer make_optimizer(const Case& c, const std::vector<Variable>& variables) {
  if (c.optimizer == "sgd") return Sgd(variables, {.lr = c.lr});
  if (c.optimizer == "momentum") return Sgd(variables, {.lr = c.lr, .momentum = 0.9});
  if (c.optimizer == "adam") return Adam(variables, {.lr = c.lr});
  return Adagrad(variables, {.lr = c.lr, .eps = kAdagradEps});
}

// A model that trains with an optimizer of Trireme.
struct Training {
  explicit Training(const Case& c, torch::Dtype dtype = torch::kFloat)
      : model(models::make_model(c.model, dtype, /*small=*/std::getenv("TRIREME_FULL") == nullptr)),
        variables(track(model.module)),
        optimizer(make_optimizer(c, variables)),
        step(function("step",
                      [loss = model.loss, optimizer = optimizer](const Tensor& x, const Tensor& y) {
                        Tensor value = loss(x, y);
                        optimizer.minimize(value);
                        return value;
                      },
                      {.seed = kSeed})) {}

  Tensors run_in_this_process() {
    Tensors losses;
    for (int i = 0; i < kSteps; ++i) {
      const auto [x, y] = model.batch(i);
      losses.push_back(step(x, y));
    }
    return losses;
  }

  // Parameters, buffers and optimizer state by name.
  std::map<std::string, Tensor> state() const {
    std::map<std::string, Tensor> all;
    for (const Variable& v : variables) all[v.name()] = v.read().detach();
    for (const Variable& v : optimizer.state()) all[v.name()] = v.read().detach();
    return all;
  }

  Model model;
  std::vector<Variable> variables;
  Optimizer optimizer;
  Function<Tensor(const Tensor&, const Tensor&)> step;
};

struct RemoteResult {
  Tensors losses;
  std::map<std::string, Tensor> state;
};

RemoteResult run_in_another_process(Training& training) {
  const auto folder =
      std::filesystem::temp_directory_path() / absl::StrCat("models_test.", getpid());
  std::filesystem::create_directories(folder);
  const auto [x, y] = training.model.batch(0);
  const Graph graph = training.step.graph(x, y);
  graph.save(folder / "graph");
  Tensors state;
  const auto& def = internal::Access<Graph>::plan(graph)->graph->def;
  const auto named = training.state();
  for (const auto& variable : def.variables()) state.push_back(named.at(variable.name()));
  for (int i = 0; i < kSteps; ++i) {
    const auto batch = training.model.batch(i);
    state.push_back(batch.x);
    state.push_back(batch.y);
  }
  throw_if_error(internal::write_file(folder / "state", value_or_throw(encode_tensors(state))));
  const std::string command =
      absl::StrCat(GRAPH_RUNNER, " ", (folder / "graph").string(), " ", (folder / "state").string(),
                   " ", kSteps, " ", kSeed, " ", (folder / "result").string());
  if (std::system(command.c_str()) != 0) throw std::runtime_error("graph_runner failed");
  const Tensors result =
      value_or_throw(decode_tensors(value_or_throw(internal::read_file(folder / "result"))));
  std::filesystem::remove_all(folder);
  RemoteResult remote;
  remote.losses.assign(result.begin(), result.begin() + kSteps);
  for (int i = 0; i < def.variables_size(); ++i) {
    remote.state[def.variables(i).name()] = result[kSteps + i];
  }
  return remote;
}

class Models : public testing::TestWithParam<Case> {};

TEST_P(Models, TrainInAnotherProcessAsEagerly) {
  Tensors eager_losses;
  std::map<std::string, Tensor> eager_state;
  {
    run_eagerly(true);
    Training eager(GetParam());
    eager_losses = eager.run_in_this_process();
    eager_state = eager.state();
    run_eagerly(false);
  }
  Training captured(GetParam());
  const RemoteResult remote = run_in_another_process(captured);
  double worst = 0;
  for (int i = 0; i < kSteps; ++i) {
    worst = std::max(worst, relative_distance(remote.losses[i], eager_losses[i]));
  }
  for (const auto& [name, tensor] : remote.state) {
    const double off = relative_distance(tensor, eager_state.at(name));
    EXPECT_LE(off, 1e-6) << name;
    worst = std::max(worst, off);
  }
  EXPECT_LE(worst, 1e-6);
  EXPECT_GE(remote.state.size(), captured.optimizer.variables().size());
  RecordProperty("worst", absl::StrCat(worst));
  std::printf("  %-14s %-9s %s (worst %.3g), loss %.4f -> %.4f\n", GetParam().model.c_str(),
              GetParam().optimizer.c_str(), worst == 0 ? "bitwise equal" : "nearly equal", worst,
              eager_losses[0].item<double>(), eager_losses.back().item<double>());
}

std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const Case& c, const Tensors& parameters) {
  using namespace torch::optim;
  if (c.optimizer == "sgd") return std::make_unique<SGD>(parameters, SGDOptions(c.lr));
  if (c.optimizer == "momentum") {
    return std::make_unique<SGD>(parameters, SGDOptions(c.lr).momentum(0.9));
  }
  if (c.optimizer == "adam")
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(c.lr));
  return std::make_unique<torch::optim::Adagrad>(
      parameters, torch::optim::AdagradOptions(c.lr).eps(kAdagradEps));
}

TEST_P(Models, TrainInDoubleAsTorchOptim) {
  if (GetParam().model == "embedding_bag" && GetParam().optimizer == "adam") {
    GTEST_SKIP() << "torch::optim::Adam takes no sparse gradients";
  }
  // oneDNN has no kernels for doubles, so this also tests other code paths of LibTorch.
  Training ours(GetParam(), torch::kDouble);
  ours.run_in_this_process();
  Model theirs =
      models::make_model(GetParam().model, torch::kDouble, std::getenv("TRIREME_FULL") == nullptr);
  const auto optimizer = torch_optimizer(GetParam(), theirs.module->parameters());
  for (int i = 0; i < kSteps; ++i) {
    const auto [x, y] = theirs.batch(i);
    seed_step(kSeed, i);
    optimizer->zero_grad();
    theirs.loss(x, y).backward();
    optimizer->step();
  }
  const auto state = ours.state();
  for (const auto& parameter : theirs.module->named_parameters()) {
    EXPECT_LE(relative_distance(state.at(parameter.key()), parameter.value().detach()), 1e-9)
        << parameter.key();
  }
  for (const auto& buffer : theirs.module->named_buffers()) {
    EXPECT_LE(relative_distance(state.at(buffer.key()), buffer.value()), 1e-9) << buffer.key();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Models,
    testing::Values(Case{"mlp", "momentum", 0.05}, Case{"mlp", "adam", 0.001},
                    Case{"mlp", "adagrad", 0.01}, Case{"conv", "momentum", 0.05},
                    Case{"conv", "adam", 0.001}, Case{"conv", "adagrad", 0.01},
                    Case{"transformer", "momentum", 0.05}, Case{"transformer", "adam", 0.001},
                    Case{"transformer", "adagrad", 0.01}, Case{"lstm", "momentum", 0.05},
                    Case{"lstm", "adam", 0.001}, Case{"lstm", "adagrad", 0.01},
                    Case{"embedding_bag", "sgd", 0.1}, Case{"embedding_bag", "adagrad", 0.1},
                    Case{"embedding_bag", "adam", 0.01}),
    [](const auto& info) { return info.param.model + "_" + info.param.optimizer; });

}  // namespace
}  // namespace trireme
