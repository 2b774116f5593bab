// A client program for tests that kill it, and the tasks of its cluster: a fit() with
// BackupAndRestore, and with callbacks whose decisions depend on what they have seen.
//
//   fit_client FOLDER EPOCHS STEPS STEPS_PER_EXECUTION
//
// Uses the parameter servers of TF_CONFIG, or the default strategy without one. Writes the last
// weights to FOLDER/last.safetensors, the best ones to FOLDER/best.safetensors and the history to
// FOLDER/history.json. Prints:
//
//   client PID     the process has begun
//   fit            fit() has begun, and a checkpoint was restored if there was one
//   done           everything is written
//   error CODE: text
#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "trireme/cluster/flags.h"
#include "trireme/distribute/strategy.h"
#include "trireme/exec/random.h"
#include "trireme/metric/metric.h"
#include "trireme/model/backup_and_restore.h"
#include "trireme/model/model.h"
#include "trireme/model/model_checkpoint.h"

namespace tr = trireme;
using torch::Tensor;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(8, 32));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    last = register_module("last", torch::nn::Linear(32, 4));
  }
  Tensor forward(const Tensor& x) { return last(dropout(torch::relu(first(x)))); }

  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Net);

// Reduces the rate after each third epoch that is not the best so far.
class ReduceRate : public tr::Callback {
 public:
  void on_epoch_end(tr::Fit& fit, tr::Logs& logs) override {
    const double loss = logs["val_loss"];
    if (loss < best_) {
      best_ = loss;
    } else if (++worse_ % 3 == 0) {
      fit.set_lr(fit.lr() * 0.9);
    }
    logs.set("lr", fit.lr());
    logs.set("worse", worse_);
  }
  std::string save() const override {
    char text[64];
    std::snprintf(text, sizeof text, "%a %d", best_, worse_);
    return text;
  }
  void restore(const std::string& state) override {
    if (std::sscanf(state.c_str(), "%la %d", &best_, &worse_) != 2) std::abort();
  }

 private:
  double best_ = 1e9;
  int worse_ = 0;
};

void train(const std::string& folder, int64_t epochs, int64_t steps, int steps_per_execution) {
  torch::manual_seed(1);
  tr::set_seed(7);
  const tr::Cluster cluster = tr::resolve(tr::Flags());
  const Tensor x = torch::rand({1000, 8});
  const Tensor y = (x.sum(1) - 2).clamp(0, 3).to(torch::kLong);
  tr::Model model(Net(), tr::make_strategy(cluster, ""));
  model.compile({.optimizer = tr::Adam({.lr = 0.003}),
                 .loss = torch::nn::CrossEntropyLoss(),
                 .metrics = {tr::Accuracy()},
                 .steps_per_execution = steps_per_execution});
  const tr::History history = model.fit(
      tr::Dataset::from_tensors({x, y}).shuffle(1000).repeat().batch(20),
      {.epochs = epochs,
       .steps_per_epoch = steps,
       .validation = std::pair(x, y),
       .callbacks = {ReduceRate(),
                     tr::ModelCheckpoint(folder + "/best.safetensors", {.save_best_only = true}),
                     tr::BackupAndRestore(folder + "/backup", {.save_freq = steps * 2 / 5}),
                     tr::on_train_begin([](tr::Fit&) { std::puts("fit"); })},
       .verbose = tr::Verbose::kSilent});
  model.save(folder + "/last.safetensors");
  std::ofstream(folder + "/history.json") << history.to_json();
  std::puts("done");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("client %d\n", getpid());
  at::set_num_threads(1);
  try {
    train(argv[1], std::stol(argv[2]), std::stol(argv[3]), std::stoi(argv[4]));
  } catch (const tr::Error& error) {
    std::printf("error %s: %s\n", tr::error_code_name(error.code()), error.what());
    return 1;
  }
}
