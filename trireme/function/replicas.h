#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "trireme/capture/aggregation.h"
#include "trireme/function/worker_values.h"

namespace trireme {

// Returns the number of the replica that the calling thread runs in strategy.run(); 0 outside of
// it. If several workers train together, the replicas of all are numbered in the order of the
// workers.
int replica_id();

namespace internal {

// The replicas that share a step: the same number in each worker.
struct ReplicaSet {
  ReplicaSet(int replicas, WorkerGroup* group = nullptr)
      : here(replicas), workers(group) {}  // NOLINT

  // Returns the number of replicas in all workers.
  int total() const { return workers == nullptr ? here : here * workers->workers(); }

  int here;              // number of replicas in this process
  WorkerGroup* workers;  // workers that train together; null if there is only this process
};

// Runs a body once for each replica, in order, on the calling thread. Replicas that call
// all_reduce() run in turns, from each call of it to the next.
//
// With several replicas, changes of variables are not made where the body asks for them. They are
// collected, and each is made once after the last replica, from the values of all replicas. So all
// replicas read the same values, and a step on parameter servers reads no variable after its
// optimizer got a gradient. Throws Error if the replicas do not make the same changes in the same
// order, or if it is called in a replica.
//
// The body gets the number of the replica in this process. If several workers train together, all
// of them call it, and values are combined over the replicas of all.
void for_each_replica(const ReplicaSet& replicas, const std::function<void(int replica)>& body);

// Returns true if the calling thread runs one of several replicas, of this or other workers, so
// that changes must be deferred.
bool in_replica();

// A change that a replica asks for.
struct DeferredChange {
  const void* object;  // object to change; identifies it among objects with the same name
  std::string name;    // name of the object for errors: "variable 'w'"
  std::string call;    // name of the call for errors: "assign"
  Aggregation aggregation;
  std::vector<at::Tensor> values;  // values of this replica; must not be written to afterwards
  bool are_gradients = false;      // true if workers may send the values with fewer bits
  // Makes the change with the combined values. Called once for all replicas. Must not be null.
  std::function<void(const std::vector<at::Tensor>& aggregated)> make;
};
// Adds a change of the current replica. Must be called in a replica.
void defer(DeferredChange change);

// Implements all_reduce(). In a replica, it returns when all replicas have called it.
at::Tensor all_reduce_replicas(Aggregation aggregation, const at::Tensor& value);

// Combines the tensors of the replicas, one by one. All replicas must give the same number of
// tensors. Undefined ones count as zero. Sums of sparse tensors are sparse.
// With `workers`, combines them over the replicas of all workers, which may send gradients with
// fewer bits.
std::vector<at::Tensor> aggregate(Aggregation aggregation,
                                  const std::vector<std::vector<at::Tensor>>& by_replica,
                                  WorkerGroup* workers = nullptr, bool are_gradients = false);

}  // namespace internal
}  // namespace trireme
