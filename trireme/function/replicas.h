#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "trireme/capture/aggregation.h"

namespace trireme {

// The number of the replica that the calling thread runs, in strategy.run(); else 0.
int replica_id();

namespace internal {

// Runs a body once for each replica, in order, on the calling thread.
//
// With several of them a change that the body makes is not made in its place. It is collected, and
// made once, after the last replica, of what all replicas gave for it. So they all see the same
// values, and a step on parameter servers reads no variable after its optimizer got a gradient.
// Throws Error if the replicas do not make the same changes in the same order.
void for_each_replica(int replicas, const std::function<void(int replica)>& body);

// Whether the calling thread is in one of several replicas, so that changes are to be deferred.
bool in_replica();

struct DeferredChange {
  const void* object;  // what is changed; tells it from others of one name
  std::string name;    // for people: "variable 'w'"
  std::string call;    // "assign"
  Aggregation aggregation;
  std::vector<at::Tensor> values;  // of this replica, which nobody will write to
  std::function<void(const std::vector<at::Tensor>& aggregated)> make;
};
void defer(DeferredChange change);

// Tensor by tensor over the replicas, each of which gives as many. Undefined ones count as zero.
// Sums of sparse tensors are sparse.
std::vector<at::Tensor> aggregate(Aggregation aggregation,
                                  const std::vector<std::vector<at::Tensor>>& by_replica);

}  // namespace internal
}  // namespace trireme
