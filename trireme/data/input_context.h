#pragma once

#include <cstdint>

namespace trireme {

// What a dataset function is told of the worker that it makes a dataset for, so that workers can be
// given different data.
struct InputContext {
  int num_input_pipelines = 1;  // as many as workers
  int input_pipeline_id = 0;    // which of them this one is for
  int num_replicas_in_sync = 1;

  // The share of a batch that one of the replicas in sync takes. Throws Error when it does not
  // divide.
  int64_t get_per_replica_batch_size(int64_t global_batch_size) const;
};

}  // namespace trireme
