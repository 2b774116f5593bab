// Writes event files for tensorboard_test.py: in FOLDER/events events whose values the test knows,
// and in FOLDER/fit those of a fit(), whose history it prints.
//
// usage: tensorboard_program FOLDER
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/model/model.h"
#include "trireme/model/tensorboard.h"
#include "trireme/observe/event_file.h"

namespace trireme {
namespace {

void write_run(const std::string& folder, int64_t first, int64_t end) {
  const auto file = value_or_throw(EventFile::create(folder));
  for (int64_t step = first; step < end; ++step) {
    const auto number = static_cast<double>(step);
    file->add_scalar("loss", step, 1 / (number + 1));
    file->add_histogram("fc1/weight", step,
                        {{-number, 0, number}, {0, 0.5, 7}, {0.5, number + 1, 2 * number}});
    throw_if_error(file->flush());
  }
  file->add_scalar("accuracy", end - 1, 0);
  file->add_text("notes", first, "**Größe** " + std::to_string(first));
  throw_if_error(file->flush());
}

// Trains a net with 5 parameters on 160 examples, with 40 more for the validation.
History fit_model(const std::string& folder) {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({200, 4});
  Model model(torch::nn::Linear(4, 1));
  model.compile({.optimizer = Sgd({.lr = 0.0625}),
                 .loss = torch::nn::MSELoss(),
                 .metrics = {MeanAbsoluteError()},
                 .steps_per_execution = 2});
  return model.fit(
      x, x.sum(1, true),
      {.batch_size = 20,
       .epochs = 3,
       .validation_split = 0.2,
       .callbacks = {TensorBoard(
           folder, {.histogram_freq = 2, .update_freq = 4, .text = {{"notes", "**linear**"}}})},
       .verbose = Verbose::kSilent});
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using trireme::join_path;
  if (argc != 2) return 2;
  const std::string events = join_path(argv[1], "events");
  try {
    trireme::write_run(join_path(events, "train"), 0, 40);
    trireme::write_run(join_path(events, "train"), 40, 60);  // as a process that continues the run
    trireme::write_run(join_path(events, "validation"), 0, 3);
    std::printf("%s\n", trireme::fit_model(join_path(argv[1], "fit")).to_json().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
