#include "trireme/data/shared_seeds.h"

#include <utility>

#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/data/dataset_data.h"
#include "trireme/data/dataset_steps.h"

namespace trireme::internal {
namespace {

// Adds the shuffles and maps of a definition that are before a shard step. `is_divided` is true if
// such a step follows the definition. Maps count because a filter may look at the numbers that they
// draw.
void add_seeded_steps(proto::DatasetDef& def, bool is_divided,
                      std::vector<proto::DatasetStep*>& found) {
  for (int i = def.steps_size() - 1; i >= 0; --i) {
    proto::DatasetStep& step = *def.mutable_steps(i);
    is_divided = is_divided || step.shard().count() > 1;
    if (is_divided && (step.has_shuffle() || step.has_map())) found.push_back(&step);
    for (proto::DatasetDef* inner : definitions_in(step)) {
      add_seeded_steps(*inner, is_divided, found);
    }
  }
}

}  // namespace

std::vector<uint64_t> seeds_before_shards(const Dataset& dataset) {
  DatasetData data = data_of(dataset);
  std::vector<proto::DatasetStep*> steps;
  add_seeded_steps(data.def, false, steps);
  std::vector<uint64_t> seeds;
  for (const proto::DatasetStep* step : steps) {
    seeds.push_back(step->has_shuffle() ? step->shuffle().seed() : step->map().seed());
  }
  return seeds;
}

Dataset with_seeds_before_shards(const Dataset& dataset, const std::vector<uint64_t>& seeds) {
  DatasetData data = data_of(dataset);
  std::vector<proto::DatasetStep*> steps;
  add_seeded_steps(data.def, false, steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i]->has_shuffle()) {
      steps[i]->mutable_shuffle()->set_seed(seeds.at(i));
    } else {
      steps[i]->mutable_map()->set_seed(seeds.at(i));
    }
  }
  const SuspendDeviceCheck own;
  return value_or_throw(dataset_from(std::move(data)));
}

}  // namespace trireme::internal
