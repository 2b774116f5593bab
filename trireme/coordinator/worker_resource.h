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

// What every worker has its own of: an iterator over a dataset. Made on a worker before the first
// closure that draws from it goes there, and anew when the worker was replaced. The datasets are
// made here, by a function of the user. Thread-safe.
class WorkerResource {
 public:
  using DatasetFunction = std::function<Dataset(const InputContext&)>;

  WorkerResource(uint64_t id, DatasetFunction function) : id_(id), function_(std::move(function)) {}

  uint64_t id() const { return id_; }
  // Runs the user's function, which may throw.
  Dataset make_dataset(const InputContext& context) const { return function_(context); }
  void set_dataset(int worker, Dataset dataset);
  void forget_worker(int worker);
  // None of a worker that has none, as it is another coordinator's.
  std::optional<Dataset> dataset(int worker) const;
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
  // Makes datasets for those of these workers that have none yet. Runs functions of the user's: if
  // one throws, nothing has changed. Not to be called by two threads at once.
  void prepare_workers(const std::set<int>& workers);
  // The workers are these from now on, all of them prepared. The others are not to ask any more.
  void set_workers(const std::set<int>& workers);

  // Which of these nobody holds any more.
  std::vector<uint64_t> gone(const std::set<uint64_t>& resources) const;

 private:
  InputContext context_of(int worker, const std::set<int>& workers) const;
  std::vector<std::shared_ptr<WorkerResource>> held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int replicas_;
  mutable Mutex mutex_;
  std::set<int> workers_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<WorkerResource>> resources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
