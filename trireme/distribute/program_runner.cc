#include "trireme/distribute/program_runner.h"

#include <ATen/ops/tensor.h>

#include <exception>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/result_sums.h"
#include "trireme/data/shared_seeds.h"
#include "trireme/data/used_numbers.h"
#include "trireme/distribute/agreed_source.h"
#include "trireme/exec/random.h"

namespace trireme::internal {
namespace {

// Returns the dataset of a worker with the seeds of worker 0. Where each worker keeps its share of
// the same elements, all must shuffle them in the same way, even if their seeds differ
// (set_seed()). A dataset function may make other steps on this worker, which then keep their
// seeds.
Dataset with_common_seeds(const Dataset& dataset, WorkerGroup& workers) {
  const std::vector<uint64_t> own = seeds_before_shards(dataset);
  std::vector<int64_t> numbers = {static_cast<int64_t>(own.size())};
  for (uint64_t seed : own) numbers.push_back(static_cast<int64_t>(seed));
  const at::Tensor all = workers.concatenate(at::tensor(numbers, at::kLong), "seeds of the data");
  const int64_t* const first = all.const_data_ptr<int64_t>();
  if (first[0] != numbers[0]) return dataset;
  const std::vector<uint64_t> common(first + 1, first + 1 + own.size());
  return common == own ? dataset : with_seeds_before_shards(dataset, common);
}

// An iterator in this program. Its copies share the position, which restart() sets back.
class ProgramData final : public StepData {
 public:
  explicit ProgramData(const Dataset& dataset) : iterator_(dataset.iterator()), drawn_(iterator_) {}
  // For workers that train together. With `agree`, their data may have different lengths
  // (agreed_source.h).
  ProgramData(const Dataset& dataset, WorkerGroup& workers, bool agree)
      : iterator_(with_common_seeds(dataset, workers).iterator()),
        drawn_(agree ? agreed_iterator(iterator_, workers) : iterator_) {}

  void restart() override {
    const uint64_t seed = Access<Iterator>::position(iterator_).seed;
    Access<Iterator>::restore(iterator_, {.seed = step_seed(seed, 1)});
  }
  Checkpointed position() const override { return iterator_; }
  // Returns the iterator that steps draw from.
  const Iterator& iterator() const { return drawn_; }

 private:
  const Iterator iterator_;
  const Iterator drawn_;
};

class ProgramRunner final : public StepRunner {
 public:
  ProgramRunner(int replicas, std::shared_ptr<WorkerGroup> workers)
      : replicas_(replicas), workers_(std::move(workers)) {}

  std::shared_ptr<StepData> open(const DatasetCreator& data) override {
    if (workers_ == nullptr) {
      return std::make_shared<ProgramData>(data.make({.num_replicas_in_sync = replicas_}));
    }
    const Dataset own = or_fail("the dataset function", [&] {
      return data.make({.num_input_pipelines = workers_->workers(),
                        .input_pipeline_id = workers_->worker(),
                        .num_replicas_in_sync = parts_of_batch()});
    });
    return open_together(own, /*agree=*/true);
  }

  // Every batch is divided into as many parts as there are replicas in all workers, which take
  // turns. So all workers draw the same number of parts.
  std::shared_ptr<StepData> open_shared(const Dataset& data, int64_t epochs) override {
    const Dataset all = epochs == 1 ? data : data.repeat(epochs == 0 ? Dataset::kForever : epochs);
    if (workers_ == nullptr) return std::make_shared<ProgramData>(all);
    return open_together(all.shard(workers_->workers(), workers_->worker()), /*agree=*/false);
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
  int parts_of_batch() const override {
    return workers_ == nullptr ? replicas_ : replicas_ * workers_->workers();
  }

 private:
  // Calls a function. An error ends the group, since the others wait for this worker. `what` says
  // what has thrown it.
  template <typename Call>
  std::invoke_result_t<Call> or_fail(const char* what, Call call) const {
    try {
      return call();
    } catch (const std::exception& error) {
      workers_->fail(absl::StrCat(what, " of worker ", workers_->worker(),
                                  " ended with an error: ", error.what()));
      throw;
    }
  }

  std::shared_ptr<StepData> open_together(const Dataset& data, bool agree) const {
    return or_fail("opening the data",
                   [&] { return std::make_shared<ProgramData>(data, *workers_, agree); });
  }

  const int replicas_;
  const std::shared_ptr<WorkerGroup> workers_;
};

}  // namespace

std::shared_ptr<StepRunner> make_program_runner(int replicas,
                                                std::shared_ptr<WorkerGroup> workers) {
  return std::make_shared<ProgramRunner>(replicas, std::move(workers));
}

}  // namespace trireme::internal
