#include "trireme/distribute/default_kind.h"

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/distribute/program_runner.h"
#include "trireme/strategy/module_pairs.h"
#include "trireme/strategy/open_scope.h"

namespace trireme::internal {
namespace {

// Lets variables be in the program, also inside of the scope of another strategy.
struct ProgramScope {
  explicit ProgramScope(std::shared_ptr<StrategyKind> kind) : noted(std::move(kind)) {}

  OpenScope noted;
  BackendScope program{nullptr};
};

// Copies the tensors of one module into those of another.
void copy_all(const std::vector<TensorPair>& pairs, at::Tensor TensorPair::*from,
              at::Tensor TensorPair::*to) {
  const at::NoGradGuard no_gradients;
  for (const TensorPair& pair : pairs) (pair.*to).copy_(pair.*from);
}

}  // namespace

std::shared_ptr<void> DefaultKind::open_scope() {
  return std::make_shared<ProgramScope>(shared_from_this());
}

void DefaultKind::pull(const torch::nn::Module& module, const torch::nn::Module& local) {
  check_outside_of_functions("pull");
  copy_all(pair_tensors(module, local), &TensorPair::distributed, &TensorPair::local);
}

void DefaultKind::push(const torch::nn::Module& module, const torch::nn::Module& local) {
  check_outside_of_functions("push");
  copy_all(pair_tensors(module, local), &TensorPair::local, &TensorPair::distributed);
}

DatasetCreator DefaultKind::distribute_dataset(const Dataset& dataset,
                                               const DistributeOptions& options) {
  return DatasetCreator([dataset, shard = options.shard](const InputContext& context) {
    return shard_dataset(dataset, shard, context);
  });
}

DatasetCreator DefaultKind::distribute_function(
    std::function<Dataset(const InputContext&)> dataset_function) {
  return DatasetCreator(std::move(dataset_function));
}

void DefaultKind::check_trains() const {
  if (!evaluates_) return;
  throw Error(ErrorCode::kFailedPrecondition,
              "this process is the evaluator of the cluster, which does not train; call "
              "evaluate_checkpoints() where me.is_evaluator() is true, with the folder in which "
              "BackupAndRestore of the other processes makes checkpoints");
}

std::shared_ptr<StepRunner> DefaultKind::runner() {
  return make_program_runner(/*replicas=*/1);
}

}  // namespace trireme::internal
