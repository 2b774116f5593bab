#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/dataset.h"

// Seeds of datasets that a shard() divides among workers. Each worker keeps its share of the same
// elements, so these must come in the same order on all of them. The steps before the shard() need
// the same seeds for that. Steps after it work on the elements of one worker only.
namespace trireme::internal {

// Returns the seeds of the shuffles and maps before a shard() of several workers.
std::vector<uint64_t> seeds_before_shards(const Dataset& dataset);
// Returns the dataset with other seeds of these steps. There must be as many as
// seeds_before_shards() returns.
Dataset with_seeds_before_shards(const Dataset& dataset, const std::vector<uint64_t>& seeds);

}  // namespace trireme::internal
