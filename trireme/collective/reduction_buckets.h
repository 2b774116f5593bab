#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/graph/plan.h"
#include "trireme/placement/move_buckets.h"

namespace trireme::internal {

struct ReductionOptions {
  int64_t communicator = 0;  // StepCommunicator::number()
  // Dtype of float gradients on their way; nullopt for their own.
  std::optional<c10::ScalarType> wire_dtype;
  int64_t bucket_bytes = kBucketBytes;
};

// Returns the plan's graph with the operators that combine values over workers
// (function/worker_values.h) replaced by those that do so with a communicator (step_reductions.h).
// Sums that follow each other are made in buckets, the last sums first, since backward makes the
// gradients of the last layers first. A bucket is started as soon as nothing changes its values any
// more, so that it is summed while backward goes on. Returns the graph itself if it has no such
// operators.
std::shared_ptr<const GraphData> reduce_over_ranks(const Plan& plan,
                                                   const ReductionOptions& options);

}  // namespace trireme::internal
