#include "trireme/distribute/program_runner.h"

#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/coordinator/result_sums.h"
#include "trireme/data/used_numbers.h"
#include "trireme/exec/random.h"

namespace trireme::internal {
namespace {

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

class ProgramRunner final : public StepRunner {
 public:
  explicit ProgramRunner(int replicas) : replicas_(replicas) {}

  std::shared_ptr<StepData> open(const DatasetCreator& data) override {
    return std::make_shared<ProgramData>(data.make({.num_replicas_in_sync = replicas_}));
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
  int parts_of_batch() const override { return replicas_; }

 private:
  const int replicas_;
};

}  // namespace

std::shared_ptr<StepRunner> make_program_runner(int replicas) {
  return std::make_shared<ProgramRunner>(replicas);
}

}  // namespace trireme::internal
