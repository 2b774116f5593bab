#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace trireme {

// The learning rate of a step, of which the first is 0. A plain function: give its value to
// Optimizer::set_lr() or with a push, or write one of your own.
using Schedule = std::function<double(int64_t step)>;

Schedule constant_rate(double lr);

struct ExponentialDecayOptions {
  double lr = 0.1;
  double factor = 0.96;  // per `steps`
  int64_t steps = 1000;
  bool staircase = false;  // only at multiples of `steps`
};
Schedule exponential_decay(ExponentialDecayOptions options);

// The rate of the last (step, lr) that is not after the step; they go up in steps, from step 0.
Schedule piecewise_constant(std::vector<std::pair<int64_t, double>> rates);

struct PolynomialDecayOptions {
  double lr = 0.1;
  double end_lr = 0;
  double power = 1;
  int64_t steps = 1000;  // until end_lr is reached
};
Schedule polynomial_decay(PolynomialDecayOptions options);

struct CosineDecayOptions {
  double lr = 0.1;
  double end_lr = 0;
  int64_t steps = 1000;
};
Schedule cosine_decay(CosineDecayOptions options);

// Grows from 0 for that many steps to the rate that the schedule has then, and follows it.
Schedule warm_up(int64_t steps, Schedule then);

}  // namespace trireme
