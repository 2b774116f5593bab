#pragma once

#include <cstdint>

namespace trireme {

// Describes the worker that a dataset function makes a dataset for, so that each worker can be
// given different data.
struct InputContext {
  int num_input_pipelines = 1;   // number of workers that get a dataset
  int input_pipeline_id = 0;     // index of this worker among them, counted from 0
  int num_replicas_in_sync = 1;  // number of replicas that share a global batch

  // Returns the part of a global batch that each replica takes. Throws Error if the batch cannot be
  // divided evenly.
  int64_t get_per_replica_batch_size(int64_t global_batch_size) const;
};

// Stands for the worker that Shard::kHint fills in, see Dataset::shard().
struct ShardHint {};

}  // namespace trireme
