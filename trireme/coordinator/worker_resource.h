#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/data/dataset.h"
#include "trireme/data/input_context.h"

namespace trireme::internal {

// What every worker has its own of: an iterator over a dataset. Made on a worker before the first
// closure that draws from it goes there, and anew when the worker was replaced. The datasets are
// made here, by a function of the user. Thread-safe.
class WorkerResource {
 public:
  using DatasetFunction = std::function<Dataset(const InputContext&)>;

  WorkerResource(uint64_t id, DatasetFunction function) : id_(id), function_(std::move(function)) {}

  uint64_t id() const { return id_; }
  // Runs the user's function, which may throw.
  void add_worker(int worker, const InputContext& context);
  // Of a worker that was added.
  Dataset dataset(int worker) const;
  // Zeros that look like its elements, on the first worker at least.
  Element example() const;

 private:
  const uint64_t id_;
  const DatasetFunction function_;
  mutable Mutex mutex_;
  std::map<int, Dataset> datasets_ ABSL_GUARDED_BY(mutex_);
  Element example_ ABSL_GUARDED_BY(mutex_);
};

// Those of a coordinator. Thread-safe.
class WorkerResources {
 public:
  explicit WorkerResources(int replicas) : replicas_(replicas) {}

  // One for every worker, now and later. It lives as long as somebody holds it.
  std::shared_ptr<WorkerResource> make(WorkerResource::DatasetFunction function);
  void add_worker(int worker);
  void remove_worker(int worker);

  // Which of these nobody holds any more.
  std::vector<uint64_t> gone(const std::set<uint64_t>& resources) const;

 private:
  InputContext context_of(int worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int replicas_;
  mutable Mutex mutex_;
  std::set<int> workers_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<WorkerResource>> resources_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace trireme::internal
