#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme {

// Returns the learning rate of a step. Steps count from 0. A plain function, so any function of
// your own will do. fit() follows the schedule in the options of an optimizer (Rate). In a loop of
// your own, pass its value to Optimizer::set_lr():
//
//   const tr::Schedule schedule = tr::warm_up(100, tr::cosine_decay({.lr = 0.1, .steps = 10000}));
//   for (int64_t i = 0; i < 10000; ++i) {
//     optimizer.set_lr(schedule(i));
//     step(x, y);
//   }
using Schedule = std::function<double(int64_t step)>;

// The learning rate in the options of an optimizer, made implicitly: of a number, or of a schedule,
// which fit() of a model follows. A loop of one's own calls Optimizer::set_lr() itself.
//
//   tr::Adam({.lr = tr::cosine_decay({.lr = 0.001, .steps = 10000})})
class Rate {
 public:
  // Stands for a number.
  Rate(double lr) : lr_(lr) {}  // NOLINT
  // Stands for a schedule, or any function of the step.
  template <typename F>
    requires(std::convertible_to<F, Schedule> && !std::is_arithmetic_v<std::decay_t<F>>)
  Rate(F schedule) : schedule_(std::move(schedule)), lr_(schedule_(0)) {}  // NOLINT

  // Returns the rate of step 0.
  operator double() const { return lr_; }  // NOLINT
  // Returns the schedule; null if the rate is a number.
  const Schedule& schedule() const { return schedule_; }

 private:
  Schedule schedule_;
  double lr_;
};

// Returns a schedule with the same rate for all steps.
Schedule constant_rate(double lr);

// Options of exponential_decay().
struct ExponentialDecayOptions {
  double lr = 0.1;         // rate of step 0
  double factor = 0.96;    // factor by which the rate changes in `steps` steps
  int64_t steps = 1000;    // length of a period; 1 or more
  bool staircase = false;  // true to change the rate only at the end of a period
};

// Returns a schedule that multiplies the rate by `factor` every `steps` steps.
Schedule exponential_decay(ExponentialDecayOptions options);

// Returns a schedule that keeps each rate until the next one. `rates` are pairs of a step and the
// rate from that step on, sorted by step; the first must be for step 0. Throws Error otherwise.
//
//   tr::piecewise_constant({{0, 0.1}, {1000, 0.01}})
Schedule piecewise_constant(std::vector<std::pair<int64_t, double>> rates);

// Options of polynomial_decay().
struct PolynomialDecayOptions {
  double lr = 0.1;       // rate of step 0
  double end_lr = 0;     // rate from step `steps` on
  double power = 1;      // power of the polynomial; 1 for a straight line
  int64_t steps = 1000;  // number of steps until end_lr is reached; 1 or more
};

// Returns a schedule that falls from `lr` to `end_lr` along a polynomial.
Schedule polynomial_decay(PolynomialDecayOptions options);

// Options of cosine_decay().
struct CosineDecayOptions {
  double lr = 0.1;       // rate of step 0
  double end_lr = 0;     // rate from step `steps` on
  int64_t steps = 1000;  // number of steps until end_lr is reached; 1 or more
};

// Returns a schedule that falls from `lr` to `end_lr` along half a cosine wave.
Schedule cosine_decay(CosineDecayOptions options);

// Returns a schedule that grows linearly for `steps` steps to the rate that `then` has at step
// `steps`, and follows `then` from there. Step i of the growth has (i + 1) / (steps + 1) of that
// rate.
Schedule warm_up(int64_t steps, Schedule then);

}  // namespace trireme
