#pragma once

#include "trireme/data/dataset.h"
#include "trireme/data/input_context.h"

namespace trireme {

// Decides which part of a dataset each worker reads.
enum class Shard {
  kOff,   // every worker reads everything
  kFile,  // each worker reads its own files: file i is for worker i % workers
  kData,  // each worker reads everything and keeps every `workers`-th element
  // kHint if the dataset has such a step, otherwise kFile if it is possible, otherwise kData. If
  // there are files that cannot be divided, because there are fewer than workers for instance, the
  // reason is logged once.
  kAuto,
  kHint,     // the dataset has a step shard(ShardHint()), where each worker keeps its elements
  kDynamic,  // a coordinator hands out ranges of elements as workers ask for them
};

// Options of distribute_dataset() of strategies.
struct DistributeOptions {
  // Decides which part of the dataset each worker reads.
  Shard shard = Shard::kAuto;
};

// Returns the part of a dataset that one worker reads. The parts of all workers are disjoint, and
// together they have all elements.
//
// The elements are divided before they are shuffled, batched or repeated, so each worker does this
// with its own. Only take(), skip(), shard() and zip() see the elements of all workers, which must
// come in the same order on each: kData rejects a shuffle() before them, and kFile rejects them,
// except for a zip() of sources with the same number of files. Then file i of each source must have
// the same number of records.
//
// Throws Error, which says what to do, if the dataset cannot be divided like this; with kFile, for
// instance, if it has fewer files than workers. kDynamic is an error here: it needs a coordinator,
// see ClusterCoordinator::create_per_worker_dataset().
Dataset shard_dataset(const Dataset& dataset, Shard policy, const InputContext& context);

}  // namespace trireme
