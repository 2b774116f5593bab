#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/collective/reduction.h"

namespace trireme::internal {

enum class CollectiveKind {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kAllToAll = 4,
  kBarrier = 5,
};

// One call of a collective by one rank. All tensors are dense, contiguous and on the CPU.
//
//   kind             input                     output
//   kAllReduce       the rank's values         the same tensor: the result of all ranks
//   kReduceScatter   `size` equal parts        the result for the part that has the rank's number
//   kAllGather       the rank's values         `size` parts: the values of all ranks, in order
//   kBroadcast       the same as the output    the values of the root; its own are only read
//   kAllToAll        `size` equal parts        `size` parts: the part with the rank's number of
//                                              every rank, in order
//   kBarrier         undefined                 undefined
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Reduction reduction = Reduction::kSum;
  int root = 0;           // rank that broadcasts
  std::string tag;        // name of the call, the same on all ranks
  uint64_t sequence = 0;  // number of the call in its group, from 1
  at::Tensor input, output;
  Time deadline = Time::max();
  // The call of which this is a step; null for a whole call. Errors and fingerprints are those of
  // the whole call.
  const CollectiveCall* step_of = nullptr;
};

// Returns the call as errors name it: "all_reduce(sum, float32[1024], tag 'bucket 0')".
std::string describe_call(const CollectiveCall& call);

// Returns a number that differs, with near certainty, between calls that do not fit together: by
// kind, reduction, root, tag, dtype or shape.
uint64_t fingerprint(const CollectiveCall& call);

// Returns the error for two ranks whose calls with the same number do not fit together.
// `ours` and `theirs` are descriptions of the calls, the names are those of Group::name_of().
absl::Status mismatch_error(uint64_t sequence, const std::string& our_name, const std::string& ours,
                            const std::string& their_name, const std::string& theirs);

// Makes the call in a group of one rank: copies the input to the output.
void make_alone(const CollectiveCall& call);
// Stores `a` combined with `b` in `out`, which may be `a` or `b`. For kMean it adds; divide the
// result of all ranks by their number with finish_mean().
void combine(Reduction reduction, const at::Tensor& a, const at::Tensor& b, at::Tensor out);
// Divides the sum over `ranks` ranks if the reduction is a mean.
void finish_mean(Reduction reduction, at::Tensor sum, int ranks);

}  // namespace trireme::internal
