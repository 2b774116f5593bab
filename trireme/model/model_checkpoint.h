#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/model/callback.h"
#include "trireme/model/monitor.h"

namespace trireme {

// Options of ModelCheckpoint.
struct ModelCheckpointOptions {
  // Name of the figure that save_best_only compares.
  std::string monitor = "val_loss";
  // True to write a file only after an epoch whose figure is better than all before.
  bool save_best_only = false;
  // Says which figure is better.
  MonitorMode mode = MonitorMode::kAuto;
  // Figure that the first file must surpass. nullopt for any.
  std::optional<double> initial_value_threshold = std::nullopt;
  // Number of epochs from one file to the next.
  int64_t save_freq = 1;
};

// Writes the weights to a safetensors file at the end of epochs, as Model::save() does:
//
//   tr::ModelCheckpoint("weights/{epoch:02}-{val_loss:.2f}.safetensors")
//   tr::ModelCheckpoint("best.safetensors", {.monitor = "val_accuracy", .save_best_only = true})
//
// {epoch} is the number of the epoch, from 1, and every other name in braces is a figure of it. A
// name may have a format as in Python. A file of the same name is replaced. Folders are created.
//
// The file has the weights alone. To continue an interrupted fit() use BackupAndRestore.
class ModelCheckpoint : public Callback {
 public:
  // Makes the callback. Throws Error if an option is not valid.
  explicit ModelCheckpoint(std::string path, ModelCheckpointOptions options = {});

  void on_epoch_end(Fit& fit, Logs& logs) override;
  std::string save() const override;
  void restore(const std::string& state) override;

  // Returns the best figure so far; nullopt before the first and without save_best_only.
  std::optional<double> best() const { return best_; }

 private:
  // Returns true if the figure of the epoch is better than the best one, which it then is.
  bool is_best(const Logs& logs, int64_t epoch);

  std::string path_;
  ModelCheckpointOptions options_;
  std::optional<internal::Monitor> monitor_;  // nullopt without save_best_only.
  std::optional<double> best_;
};

}  // namespace trireme
