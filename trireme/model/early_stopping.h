#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/model/callback.h"
#include "trireme/model/monitor.h"

namespace trireme {

// Options of EarlyStopping.
struct EarlyStoppingOptions {
  // Name of the figure that it watches.
  std::string monitor = "val_loss";
  // Smallest change that counts as an improvement.
  double min_delta = 0;
  // Number of epochs without an improvement after which the fit ends. With 0 it ends at the first
  // one, as with 1.
  int64_t patience = 0;
  // Says which figure is better.
  MonitorMode mode = MonitorMode::kAuto;
  // Figure that must be surpassed for the patience to start again. nullopt for none.
  std::optional<double> baseline = std::nullopt;
  // True to set the weights back to those of the best epoch when the fit ends.
  bool restore_best_weights = false;
  // Number of the first epoch that counts.
  int64_t start_from_epoch = 0;
};

// Ends a fit() when a figure no longer improves:
//
//   tr::EarlyStopping({.patience = 3, .restore_best_weights = true})
//
// The best weights are kept in the memory of the program. Checkpoints have them too, unless they
// have more than 8 MiB. A fit that continues from a checkpoint without them restores the weights of
// its first epoch, or of the best one if that is better than all before; to keep the best weights,
// write them to a file with ModelCheckpoint.
class EarlyStopping : public Callback {
 public:
  // Makes the callback. Throws Error if an option is not valid.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  void on_train_begin(Fit& fit) override;
  void on_epoch_end(Fit& fit, Logs& logs) override;
  void on_train_end(Fit& fit, const Logs& logs) override;
  std::string save() const override;
  void restore(const std::string& state) override;

  // Returns the best figure so far; nullopt before the first.
  std::optional<double> best() const { return state_.best; }
  // Returns the number of the epoch that had it.
  int64_t best_epoch() const { return state_.best_epoch; }
  // Returns the number of the epoch after which it ended the fit; nullopt if it did not.
  std::optional<int64_t> stopped_epoch() const { return state_.stopped_epoch; }

 private:
  void keep_weights(const Fit& fit);

  struct State {
    std::optional<double> best;
    int64_t best_epoch = 0;
    int64_t wait = 0;  // Number of epochs since the last improvement.
    std::optional<int64_t> stopped_epoch;
    std::vector<at::Tensor> weights;  // Weights of the best epoch, parallel to Fit::variables().
  };

  EarlyStoppingOptions options_;
  internal::Monitor monitor_;
  State state_;
};

}  // namespace trireme
