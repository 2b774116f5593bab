#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/distribute/step_runner.h"
#include "trireme/distribute/strategy.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/model/executions.h"
#include "trireme/model/figure_sums.h"
#include "trireme/model/model_data.h"
#include "trireme/model/model_options.h"
#include "trireme/model/model_steps.h"
#include "trireme/model/progress.h"
#include "trireme/train/restore_options.h"
#include "trireme/train/worker_agreement.h"

namespace torch::nn {
class Module;
}

namespace trireme::internal {

// Everything of a Model that does not depend on the type of its module. The functions that Model
// has too are described there. Not thread-safe.
class ModelCore {
 public:
  using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

  ModelCore(std::shared_ptr<torch::nn::Module> module, Forward forward, const Strategy& strategy);

  void compile(CompileOptions options);
  History fit(const DataSource& data, const FitOptions& options);
  Logs evaluate(const DataSource& data, const EvaluateOptions& options);
  at::Tensor predict(const at::Tensor& x, int64_t batch_size);
  at::Tensor predict(const Dataset& data);
  void save(const std::string& path) const;
  std::vector<std::string> load(const std::string& path, const RestoreOptions& options);
  std::string summary() const;
  const Optimizer& optimizer() const;
  const Strategy& strategy() const { return strategy_; }

 private:
  WorkerAgreement agreement() const { return WorkerAgreement(parts_.replica_set.workers); }

  using PredictFunction = Function<at::Tensor(const std::vector<at::Tensor>&)>;

  // Throws Error before compile().
  void check_compiled(const char* call) const;
  // Throws Error if there is no loss, so that nothing can be evaluated.
  void check_has_loss(const char* call) const;
  // Returns the step that trains with these weights of classes.
  const StepFunction& train_step(const std::map<int64_t, double>& class_weight);
  const StepFunction& evaluate_step();
  FigureSums training_sums() const;
  // Returns how progress is shown by this process.
  Verbose verbose_here(Verbose verbose) const;
  // Returns the number of steps of an evaluation that this process runs; nullopt if it ends with
  // the data.
  std::optional<int64_t> evaluation_steps(const OpenedData& opened) const;
  // Returns the sums of all workers together.
  FigureSums over_workers(const FigureSums& mine) const;
  // Runs an evaluation and returns its sums. Shows the progress if it is not null.
  FigureSums evaluate(const OpenedData& opened, StepProgress* progress);
  std::function<void(Logs&)> make_validation(const DataSource& data, const FitOptions& options);
  at::Tensor predict_batch(const std::vector<at::Tensor>& inputs);

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<Variable> variables_;
  Strategy strategy_;
  ModelParts parts_;
  std::shared_ptr<StepRunner> runner_;  // null before the first use
  bool compiled_ = false;
  int64_t step_ = 0;  // steps since compile()
  std::optional<StepFunction> train_step_, evaluate_step_;
  std::map<int64_t, double> class_weight_;  // weights of train_step_
  StepFigures own_figures_;                 // null without a train_step of the program
  std::optional<PredictFunction> predict_;
};

// Throws Error for options of compile() that are not valid, or contradict each other.
void check_options(const CompileOptions& options);
// Returns a table of the layers of a module, as Model::summary() does.
std::string summarize(const torch::nn::Module& module, const std::vector<Variable>& variables);

}  // namespace trireme::internal
