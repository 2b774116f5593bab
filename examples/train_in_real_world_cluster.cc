// One program for every task of a cluster: as worker or parameter server it serves, as chief it
// trains, and as evaluator it evaluates the checkpoints that the chief makes.
//
//   train_in_real_world_cluster --cluster cluster.json --task_type ps --task_index 0
//   train_in_real_world_cluster --cluster cluster.json --task_type worker --task_index 0
//   train_in_real_world_cluster --cluster cluster.json --task_type chief [FOLDER]
//   train_in_real_world_cluster --cluster cluster.json --task_type evaluator FOLDER
//
// Checkpoints and logs are in the folder. A chief that is started again continues from them. If the
// tasks are on several machines, each of them also needs --certs FOLDER.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <iostream>

#include "examples/training_loop.h"

namespace tr = trireme;
namespace nn = torch::nn;

// Returns batches of random ships, endlessly if they are for training. The worker turns the words
// of their cargo into numbers.
tr::Dataset batches_of_ships(int count, unsigned seed, bool train) {
  std::vector<std::string> cargo;
  std::vector<float> of_war;
  for (const Ship& ship : ships(count, seed)) {
    cargo.insert(cargo.end(), ship.cargo.begin(), ship.cargo.end());
    of_war.push_back(ship.of_war);
  }
  const torch::Tensor text = tr::text_tensor(cargo, kCargoBytes).view({-1, 3, kCargoBytes});
  tr::Dataset all = tr::Dataset::from_tensors({text, torch::tensor(of_war)});
  if (train) all = all.shuffle(count).repeat();
  return all.batch(32).map(
      [lookup = vocabulary()](const torch::Tensor& words, const torch::Tensor& labels) {
        return std::make_pair(lookup(words), labels);
      });
}

tr::Model<ShipNet> make_model(const tr::Strategy& strategy) {
  torch::manual_seed(1);
  tr::Model model(ShipNet(), strategy);
  model.compile({.optimizer = tr::RmsProp({.lr = 0.05, .alpha = 0.9}),
                 .loss = nn::BCEWithLogitsLoss(),
                 .metrics = {tr::Accuracy({.threshold = 0})},
                 .steps_per_execution = 5});
  return model;
}

void train_as_chief(const tr::Cluster& me, const std::string& folder) {
  auto model = make_model(tr::ParameterServerStrategy(me));
  tr::FitOptions options{.epochs = 5, .steps_per_epoch = 20, .verbose = tr::Verbose::kLines};
  if (!folder.empty()) {
    options.callbacks = {tr::BackupAndRestore(folder), tr::TensorBoard(folder + "/logs")};
  }
  const tr::History history =
      model.fit(tr::DatasetCreator([](const tr::InputContext& context) {
                  return batches_of_ships(200, context.input_pipeline_id, /*train=*/true);
                }),
                options);
  std::printf("accuracy of the last epoch: %.3f\n", history["accuracy"].back());
}

void evaluate_as_evaluator(const std::string& folder) {
  auto model = make_model(tr::Strategy());
  const auto print = [](const tr::EvaluatedCheckpoint& checkpoint) {
    std::printf("after epoch %d: loss %.3f, accuracy %.3f\n", static_cast<int>(checkpoint.epoch),
                checkpoint.logs["loss"], checkpoint.logs["accuracy"]);
    std::fflush(stdout);
  };
  tr::evaluate_checkpoints(model, folder, batches_of_ships(500, /*seed=*/99, /*train=*/false),
                           {.on_result = print, .tensorboard = folder + "/logs"});
}

int main(int argc, char** argv) try {
  const tr::Flags flags(
      argc, argv,
      tr::Usage{.about = "Trains in a cluster of processes, each of which runs this "
                         "program. Checkpoints and logs are in the folder.",
                .arguments = "[FOLDER]"});
  const tr::Cluster me = tr::resolve(flags);
  const std::string folder = flags.rest().empty() ? "" : flags.rest()[0];
  if (me.is_server()) return tr::Server(me).join();
  if (me.is_evaluator()) {
    if (folder.empty()) {
      std::cerr << "The evaluator needs the folder of the checkpoints.\n";
      return 2;
    }
    evaluate_as_evaluator(folder);
    return 0;
  }
  if (me.is_local()) {
    std::cerr << "This process has no cluster; give --cluster FILE, or set TF_CONFIG.\n";
    return 2;
  }
  train_as_chief(me, folder);
  tr::end_job(me);
  return 0;
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
