#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/dataset.h"

// Division of global batches among the replicas that train on them in the same step. Strategies
// call it.
namespace trireme::internal {

// Returns the sizes of the batches that one worker draws, in turn, where `workers` workers with
// `replicas` replicas each share a global batch. In every step, in which each worker draws one
// batch for each replica, all workers together draw `global_batch_size` examples. The sizes differ
// by one at most, and are 0 for replicas that get no data. Throws Error if an argument is not
// valid.
std::vector<int64_t> rebatch_sizes(int64_t global_batch_size, int workers, int replicas,
                                   int worker);

// Splits the batches of a dataset, whose last batch() has the size of a global batch, into batches
// of rebatch_sizes(). Logs a warning, once for all workers, if the sizes differ. So call it before
// shard_dataset(), after which every worker has another dataset. Throws Error if the dataset has no
// batch().
Dataset rebatch(const Dataset& dataset, int workers, int replicas, int worker);

// Divides each batch of a dataset into `parts` parts, one for each replica of a process. Their
// sizes differ by one at most, also those of a smaller batch at the end; parts without rows are
// given too. So a step draws `parts` elements for each batch. Throws Error if the elements are not
// batches.
Dataset divide_batches(const Dataset& dataset, int parts);

}  // namespace trireme::internal
