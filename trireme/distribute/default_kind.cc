#include "trireme/distribute/default_kind.h"

#include <ATen/core/grad_mode.h>

#include <utility>
#include <variant>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/coordinator/result_sums.h"
#include "trireme/data/used_numbers.h"
#include "trireme/exec/random.h"
#include "trireme/strategy/module_pairs.h"
#include "trireme/strategy/open_scope.h"

namespace trireme::internal {
namespace {

// Lets variables be in the program, also inside of the scope of another strategy.
struct ProgramScope {
  OpenScope noted{std::monostate()};
  BackendScope program{nullptr};
};

// An iterator in this program. Its copies share the position, which restart() sets back.
class ProgramData final : public StepData {
 public:
  explicit ProgramData(const Dataset& dataset) : iterator_(dataset.iterator()) {}

  void restart() override {
    const uint64_t seed = Access<Iterator>::position(iterator_).seed;
    Access<Iterator>::restore(iterator_, {.seed = step_seed(seed, 1)});
  }
  Checkpointed position() const override { return iterator_; }
  const Iterator& iterator() const { return iterator_; }

 private:
  const Iterator iterator_;
};

// Runs steps on the calling thread.
class ProgramRunner final : public StepRunner {
 public:
  std::shared_ptr<StepData> open(const DatasetCreator& data) override {
    return std::make_shared<ProgramData>(data.make(InputContext()));
  }

  std::shared_ptr<StepData> open_shared(const Dataset& data, int64_t epochs) override {
    if (epochs == 1) return std::make_shared<ProgramData>(data);
    return std::make_shared<ProgramData>(data.repeat(epochs == 0 ? Dataset::kForever : epochs));
  }

  StepSums run(const StepFunction& function, const std::shared_ptr<StepData>& data,
               int times) override {
    const Iterator& iterator = static_cast<const ProgramData&>(*data).iterator();
    ResultSums sums;
    for (int i = 0; i < times; ++i) {
      std::vector<at::Tensor> results = function(iterator);
      if (results.empty()) break;  // There are no more elements.
      throw_if_error(sums.add(std::move(results)));
    }
    return StepSums([] { return true; }, [result = sums.get()] { return result; });
  }

  void join() override {}
  bool runs_here() const override { return true; }
  int64_t runs_at_once() const override { return 1; }
  bool needs_steps_per_epoch() const override { return false; }
};

// Copies the tensors of one module into those of another.
void copy_all(const std::vector<TensorPair>& pairs, at::Tensor TensorPair::*from,
              at::Tensor TensorPair::*to) {
  const at::NoGradGuard no_gradients;
  for (const TensorPair& pair : pairs) (pair.*to).copy_(pair.*from);
}

}  // namespace

std::shared_ptr<void> DefaultKind::open_scope() {
  return std::make_shared<ProgramScope>();
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

std::shared_ptr<StepRunner> DefaultKind::runner() {
  return std::make_shared<ProgramRunner>();
}

}  // namespace trireme::internal
