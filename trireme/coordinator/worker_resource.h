#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/data/dataset.h"
#include "trireme/data/input_context.h"

namespace trireme::internal {

// A per-worker iterator: every worker has its own, over its own dataset. The iterator is created on
// a worker before the first closure that draws from it is sent there, and again after the worker
// was replaced. The datasets are made in the client program, by a function of the user.
// Thread-safe.
class WorkerResource {
 public:
  using DatasetFunction = std::function<Dataset(const InputContext&)>;

  WorkerResource(uint64_t id, DatasetFunction function) : id_(id), function_(std::move(function)) {}

  uint64_t id() const { return id_; }
  // Calls the user's function, which may throw.
  Dataset make_dataset(const InputContext& context) const { return function_(context); }
  void set_dataset(int worker, Dataset dataset);
  void forget_worker(int worker);
  // Returns nullopt if no dataset was made for the worker: the resource belongs to another
  // coordinator.
  std::optional<Dataset> dataset(int worker) const;
  // Returns an element of zeros with the shapes of the first dataset's elements. Other workers'
  // elements may have other shapes.
  Element example() const;

 private:
  const uint64_t id_;
  const DatasetFunction function_;
  mutable Mutex mutex_;
  std::map<int, Dataset> datasets_ ABSL_GUARDED_BY(mutex_);
  Element example_ ABSL_GUARDED_BY(mutex_);
};

// The resources of a coordinator. Holds them weakly. Thread-safe.
class WorkerResources {
 public:
  explicit WorkerResources(int replicas) : replicas_(replicas) {}

  // Makes a resource with a dataset for every worker, including workers that are added later. It
  // exists as long as the caller, a copy of its handle or a closure holds it.
  std::shared_ptr<WorkerResource> make(WorkerResource::DatasetFunction function);
  // Makes datasets for the workers that have none yet. Calls functions of the user; if one throws,
  // nothing has changed. Must not be called by two threads at once.
  void prepare_workers(const std::set<int>& workers);
  // Replaces the workers. The new workers must be prepared, and removed workers must not be used
  // any more.
  void set_workers(const std::set<int>& workers);

  // Returns true if make() of this object has made the resource, which the caller holds.
  bool has(uint64_t resource) const;
  // Returns the ids in `resources` of resources that do not exist any more.
  std::vector<uint64_t> unused(const std::set<uint64_t>& resources) const;

 private:
  InputContext context_of(int worker, const std::set<int>& workers) const;
  // Returns the resources that still exist.
  std::vector<std::shared_ptr<WorkerResource>> held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int replicas_;
  mutable Mutex mutex_;
  std::set<int> workers_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<WorkerResource>> resources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
