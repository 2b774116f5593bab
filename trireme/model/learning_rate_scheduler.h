#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "trireme/model/callback.h"

namespace trireme {

// Sets the learning rate before each epoch:
//
//   tr::LearningRateScheduler([](int64_t epoch, double lr) { return epoch < 10 ? lr : lr * 0.9; })
//
// The rate of an epoch is in the history as "learning_rate". For a rate that changes with each step
// give the optimizer a schedule (schedule.h).
class LearningRateScheduler : public Callback {
 public:
  // Returns the rate of an epoch: of its number, from 0, and the rate so far.
  using Schedule = std::function<double(int64_t epoch, double lr)>;

  // Makes the callback. Throws Error if the function is empty.
  explicit LearningRateScheduler(Schedule schedule);

  void on_train_begin(Fit& fit) override;
  // Sets the rate. Throws Error if the function returns a negative number or NaN.
  void on_epoch_begin(Fit& fit) override;
  void on_epoch_end(Fit& fit, Logs& logs) override;
  std::string save() const override;
  void restore(const std::string& state) override;

 private:
  Schedule schedule_;
  // Number of the last epoch that it set the rate for. A fit that continues in the middle of an
  // epoch has that rate already.
  std::optional<int64_t> last_epoch_;
};

}  // namespace trireme
