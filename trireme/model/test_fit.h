#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "trireme/distribute/step_runner.h"
#include "trireme/model/fit_state.h"

namespace trireme::internal {

// A fit() that runs no steps, for tests of callbacks. Tests set its place and call the callbacks
// themselves.
class TestFit {
 public:
  explicit TestFit(std::vector<Variable> variables = {}, bool runs_here = true)
      : variables_(std::move(variables)), runner_(std::make_shared<Runner>(runs_here)) {
    if (!variables_.empty()) optimizer_ = optimizer_.bind(variables_);
  }

  // Returns a fit at a place. It is valid until the next call.
  Fit at(FitPlace place) {
    FitParts parts;
    parts.variables = variables_;
    parts.optimizer = optimizer_;
    parts.runner = runner_;
    state_ = std::make_unique<FitState>(std::move(parts), place, FigureSums(std::vector<Metric>()));
    return Access<Fit>::make(*state_);
  }
  // Returns the optimizer, whose learning rate is 0.25.
  Optimizer& optimizer() { return optimizer_; }

 private:
  class Runner final : public StepRunner {
   public:
    explicit Runner(bool runs_here) : runs_here_(runs_here) {}
    std::shared_ptr<StepData> open(const DatasetCreator& data) override { return nullptr; }
    std::shared_ptr<StepData> open_shared(const Dataset& data, int64_t epochs) override {
      return nullptr;
    }
    StepSums run(const StepFunction& function, const std::shared_ptr<StepData>& data,
                 int times) override {
      return StepSums([] { return true; }, [] { return std::vector<at::Tensor>(); });
    }
    void join() override {}
    bool runs_here() const override { return runs_here_; }
    int64_t runs_at_once() const override { return 1; }
    bool needs_steps_per_epoch() const override { return false; }

   private:
    const bool runs_here_;
  };

  std::vector<Variable> variables_;
  std::shared_ptr<StepRunner> runner_;
  Optimizer optimizer_ = Sgd({.lr = 0.25});
  std::unique_ptr<FitState> state_;
};

// Returns figures in the order of a list.
inline Logs make_logs(const std::vector<std::pair<std::string, double>>& figures) {
  Logs logs;
  for (const auto& [name, value] : figures) logs.set(name, value);
  return logs;
}

}  // namespace trireme::internal
