// Training as in Keras: compile, fit, evaluate, predict. Each worker has a dataset of its own, and
// runs ten steps in one closure. A flag chooses the strategy; without a cluster, one starts in this
// process.
//
// If the file that it is given exists, the weights in it are used instead of training. Otherwise
// the trained weights are written to it.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

namespace tr = trireme;
namespace nn = torch::nn;

// Returns points, and 1 for each one inside of a circle.
std::pair<torch::Tensor, torch::Tensor> points(int64_t count) {
  torch::Tensor x = torch::rand({count, 2}) * 2 - 1;
  return {x, (x.square().sum(1, true) < 0.5).to(torch::kFloat)};
}

tr::Dataset batches_of_a_worker(const tr::InputContext& context) {
  torch::manual_seed(context.input_pipeline_id);
  auto [x, y] = points(5000);
  return tr::Dataset::from_tensors({x, y}).shuffle(5000).repeat().batch(64).prefetch(2);
}

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv,
                        tr::Usage{.about = "Trains with compile and fit, under any strategy.",
                                  .arguments = "[FILE]"});
  tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) return tr::Server(me).join();

  std::optional<tr::InProcessCluster> local;  // without a cluster: a small one in this process
  if (me.is_local() && (me.strategy.empty() || me.strategy == "ps")) {
    me.spec = local.emplace(tr::InProcessClusterOptions{.workers = 3, .ps = 2}).spec();
  }
  torch::manual_seed(1);
  tr::Strategy strategy = tr::make_strategy(me);
  tr::Model model(nn::Sequential{nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 1)}, strategy);
  model.compile({.optimizer = tr::Adam({.lr = 0.03}),
                 .loss = nn::BCEWithLogitsLoss(),
                 .metrics = {tr::Accuracy({.threshold = 0})},
                 .steps_per_execution = 10});
  torch::manual_seed(2);
  auto [x_test, y_test] = points(1000);
  const std::string file = flags.rest().empty() ? "" : flags.rest()[0];
  if (!file.empty() && std::filesystem::exists(file)) {
    model.load(file);
  } else {
    const tr::History history =
        model.fit(tr::DatasetCreator(batches_of_a_worker),
                  {.epochs = 5,
                   .steps_per_epoch = 20,
                   .validation = std::make_pair(x_test, y_test),
                   .callbacks = {tr::EarlyStopping({.patience = 3, .restore_best_weights = true}),
                                 tr::TerminateOnNan()},
                   .verbose = tr::Verbose::kLines});
    if (me.is_chief())
      std::printf("validation loss %.2f after the first epoch, %.2f after the last\n",
                  history["val_loss"].front(), history["val_loss"].back());
    if (!file.empty()) model.save(file);
  }
  const tr::Logs logs = model.evaluate(x_test, y_test, {.verbose = tr::Verbose::kSilent});
  const torch::Tensor answers = model.predict(torch::tensor({{0.1f, 0.2f}, {0.9f, -0.8f}})) > 0;
  if (!me.is_chief()) return 0;
  std::printf("test accuracy %.3f\n", logs["accuracy"]);
  std::printf("(0.1, 0.2) is %s, (0.9, -0.8) is %s\n",
              answers[0].item<bool>() ? "inside" : "outside",
              answers[1].item<bool>() ? "inside" : "outside");
  tr::end_job(me);
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
