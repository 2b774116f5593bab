#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/coordinator/worker_resource.h"
#include "trireme/data/dataset.h"
#include "trireme/data/input_context.h"

namespace trireme::internal {

// The resources of a coordinator. Holds them weakly. Thread-safe.
class WorkerResources {
 public:
  // `replicas` returns the number of replicas of a worker. It is called when a dataset is made.
  explicit WorkerResources(std::function<int()> replicas) : replicas_(std::move(replicas)) {}

  // Makes a resource with a dataset for every worker, including workers that are added later. It
  // exists as long as the caller, a copy of its handle or a closure holds it.
  std::shared_ptr<WorkerResource> make(WorkerResource::DatasetFunction function,
                                       bool is_constant = false);
  // Makes a resource whose dataset all workers share. Throws Error if it cannot be cut into ranges.
  std::shared_ptr<WorkerResource> make_shared(const Dataset& dataset, uint64_t epochs);
  // Makes datasets for the workers that have none yet. Calls functions of the user; if one throws,
  // nothing has changed. Must not be called by two threads at once.
  void prepare_workers(const std::set<int>& workers);
  // Replaces the workers. The new workers must be prepared, and removed workers must not be used
  // any more.
  void set_workers(const std::set<int>& workers);
  // Lets other workers draw the elements that were kept for a worker that is lost.
  void release_worker(int worker) const;
  // Lets closures that wait for elements be sent again, so that the queue can cancel them.
  void notify() const;

  // Returns true if make() of this object has made the resource, which the caller holds.
  bool has(uint64_t resource) const;
  // Returns those of the editions of resources that do not exist any more.
  std::vector<uint64_t> unused(const std::set<uint64_t>& editions) const;

 private:
  std::vector<std::shared_ptr<WorkerResource>> all() const;
  InputContext context_of(int worker, const std::set<int>& workers) const;
  // Returns the resources that still exist.
  std::vector<std::shared_ptr<WorkerResource>> held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<int()> replicas_;
  mutable Mutex mutex_;
  uint64_t made_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of resources made so far.
  std::set<int> workers_ ABSL_GUARDED_BY(mutex_);
  // Resources by id.
  std::map<uint64_t, std::weak_ptr<WorkerResource>> resources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
