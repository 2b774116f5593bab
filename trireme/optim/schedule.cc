#include "trireme/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "trireme/base/error.h"

namespace trireme {
namespace {

void require_steps(int64_t steps) {
  if (steps >= 1) return;
  throw Error(ErrorCode::kInvalidArgument,
              "a schedule cannot have " + std::to_string(steps) + " steps; it needs 1 or more");
}

// Returns the share of `steps` that is over at `step`, from 0 to 1.
double progress(int64_t step, int64_t steps) {
  return std::clamp(static_cast<double>(step) / steps, 0.0, 1.0);
}

}  // namespace

Schedule constant_rate(double lr) {
  return [lr](int64_t) { return lr; };
}

Schedule exponential_decay(ExponentialDecayOptions options) {
  require_steps(options.steps);
  return [=](int64_t step) {
    const double periods = static_cast<double>(step) / options.steps;
    return options.lr * std::pow(options.factor, options.staircase ? std::floor(periods) : periods);
  };
}

Schedule piecewise_constant(std::vector<std::pair<int64_t, double>> rates) {
  if (rates.empty() || rates[0].first != 0 ||
      !std::is_sorted(rates.begin(), rates.end(),
                      [](const auto& a, const auto& b) { return a.first < b.first; })) {
    throw Error(ErrorCode::kInvalidArgument,
                "the rates of a piecewise schedule must begin with step 0 and be sorted by step");
  }
  return [rates = std::move(rates)](int64_t step) {
    const auto after =
        std::upper_bound(rates.begin(), rates.end(), step,
                         [](int64_t value, const auto& rate) { return value < rate.first; });
    return after == rates.begin() ? rates[0].second : std::prev(after)->second;
  };
}

Schedule polynomial_decay(PolynomialDecayOptions options) {
  require_steps(options.steps);
  return [=](int64_t step) {
    return options.end_lr + (options.lr - options.end_lr) *
                                std::pow(1 - progress(step, options.steps), options.power);
  };
}

Schedule cosine_decay(CosineDecayOptions options) {
  require_steps(options.steps);
  return [=](int64_t step) {
    const double left = (1 + std::cos(std::numbers::pi * progress(step, options.steps))) / 2;
    return options.end_lr + (options.lr - options.end_lr) * left;
  };
}

Schedule warm_up(int64_t steps, Schedule then) {
  require_steps(steps);
  return [steps, then = std::move(then)](int64_t step) {
    return step < steps ? then(steps) * (step + 1) / (steps + 1) : then(step);
  };
}

}  // namespace trireme
