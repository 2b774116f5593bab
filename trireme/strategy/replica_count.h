#pragma once

#include <map>
#include <optional>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/rpc/credentials.h"

namespace trireme::internal {

// The number of replicas on each worker of a cluster: a given one, or else one for each GPU of a
// worker, and one if the workers have none. The workers are asked when the number is first needed,
// since a program may start before them. Thread-safe.
class ReplicaCount {
 public:
  // `given` is the number if the user has set it. `limit` is how long get() waits for a worker.
  ReplicaCount(std::optional<int> given, const ClusterSpec& spec, Credentials credentials,
               Duration limit);

  // Returns the number. The first call may ask the workers: it blocks until all have answered, or
  // until the first has and the others had some seconds more, and says for which it waits. Throws
  // Error if none has answered within the limit, or if two have different numbers of GPUs.
  int get();

 private:
  int ask_workers() const;

  const ClusterSpec workers_;  // the spec's workers only
  const Credentials credentials_;
  const Duration limit_;
  Mutex mutex_;  // held while workers are asked, so that they are asked once
  std::optional<int> count_ ABSL_GUARDED_BY(mutex_);
};

// Returns the number of replicas for workers with these numbers of GPUs: that number, or one if it
// is 0. Throws Error, which names two workers, if the numbers differ.
int replicas_for(const std::map<TaskId, int>& gpus);

}  // namespace trireme::internal
