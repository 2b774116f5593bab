// Trains on a cluster in this process: three workers, two parameter servers. Large variables are
// split into shards of at least 256 KiB.
//
// Logs and the best weights are written into a folder, by default "run". In a cluster of processes
// the same program trains on that one.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

namespace tr = trireme;
namespace nn = torch::nn;

// Learns in which of four quarters of the plane a point lies.
struct NetImpl : nn::Module {
  NetImpl() {
    register_module("hidden", hidden);
    register_module("wide", wide);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out->forward(torch::relu(wide->forward(torch::relu(hidden->forward(x)))));
  }
  nn::Linear hidden{2, 64}, wide{64, 2048}, out{2048, 4};
};
TORCH_MODULE(Net);

tr::Dataset points_of_a_worker(const tr::InputContext& context) {
  torch::manual_seed(context.input_pipeline_id);
  const torch::Tensor x = torch::rand({4000, 2}) * 2 - 1;
  const torch::Tensor quarter =
      (x.select(1, 0) > 0).to(torch::kInt64) * 2 + (x.select(1, 1) > 0).to(torch::kInt64);
  return tr::Dataset::from_tensors({x, quarter}).shuffle(4000).repeat().batch(64);
}

int main(int argc, char** argv) try {
  const tr::Flags flags(
      argc, argv,
      tr::Usage{.about = "Trains on three workers and two parameter servers in this process.",
                .arguments = "[FOLDER]"});
  tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) return tr::Server(me).join();
  std::optional<tr::InProcessCluster> local;  // without a cluster: a small one in this process
  if (me.is_local())
    me.spec = local.emplace(tr::InProcessClusterOptions{.workers = 3, .ps = 2}).spec();
  const std::string folder = flags.rest().empty() ? "run" : flags.rest()[0];
  std::filesystem::create_directories(folder);
  std::cout << me.spec.to_json() << "\n";

  torch::manual_seed(1);
  tr::ParameterServerStrategy strategy(me, {.partitioner = tr::MinSizePartitioner(256 << 10, 2)});
  tr::Model model(Net(), strategy);
  model.compile({.optimizer = tr::Adam({.lr = 0.002}),
                 .loss = nn::CrossEntropyLoss(),
                 .metrics = {tr::Accuracy()},
                 .steps_per_execution = 10});
  std::cout << model.summary();
  const tr::History history =
      model.fit(tr::DatasetCreator(points_of_a_worker),
                {.epochs = 5,
                 .steps_per_epoch = 20,
                 .callbacks = {tr::TensorBoard(folder + "/logs"), tr::CsvLog(folder + "/log.csv"),
                               tr::ModelCheckpoint(folder + "/best.safetensors",
                                                   {.monitor = "loss", .save_best_only = true}),
                               tr::EarlyStopping({.monitor = "loss", .patience = 3}),
                               tr::on_epoch_end([](tr::Fit& fit, const tr::Logs& logs) {
                                 if (logs["loss"] < 0.001) fit.stop();
                               })}});
  std::printf("accuracy of the last epoch: %.2f\n", history["accuracy"].back());
  tr::end_job(me);
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
