#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/model/callback.h"
#include "trireme/model/monitor.h"

namespace trireme {

// Options of ReduceLrOnPlateau.
struct ReduceLrOnPlateauOptions {
  // Name of the figure that it watches.
  std::string monitor = "val_loss";
  // Factor of the learning rate, between 0 and 1.
  double factor = 0.1;
  // Number of epochs without an improvement after which the rate is reduced.
  int64_t patience = 10;
  // Says which figure is better.
  MonitorMode mode = MonitorMode::kAuto;
  // Smallest change that counts as an improvement.
  double min_delta = 1e-4;
  // Number of epochs after a reduction that do not count.
  int64_t cooldown = 0;
  // Smallest learning rate.
  double min_lr = 0;
};

// Reduces the learning rate when a figure no longer improves:
//
//   tr::ReduceLrOnPlateau({.factor = 0.5, .patience = 3, .min_lr = 1e-5})
//
// The rate of an epoch is in the history as "learning_rate".
class ReduceLrOnPlateau : public Callback {
 public:
  // Makes the callback. Throws Error if an option is not valid.
  explicit ReduceLrOnPlateau(ReduceLrOnPlateauOptions options = {});

  void on_train_begin(Fit& fit) override;
  void on_epoch_end(Fit& fit, Logs& logs) override;
  std::string save() const override;
  void restore(const std::string& state) override;

 private:
  struct State {
    std::optional<double> best;
    int64_t wait = 0;      // Number of epochs since the last improvement.
    int64_t cooldown = 0;  // Number of epochs that do not count yet.
  };

  ReduceLrOnPlateauOptions options_;
  internal::Monitor monitor_;
  State state_;
};

}  // namespace trireme
