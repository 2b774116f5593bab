#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/allotment.h"
#include "trireme/data/dataset.h"
#include "trireme/data/input_context.h"
#include "trireme/data/used_numbers.h"

namespace trireme::internal {

// One worker's iterator of a resource, as it is to be created on workers.
struct WorkerIterator {
  uint64_t edition = 0;  // Id by which workers know it.
  Dataset dataset;
  uint64_t seed = 0;
};

// A per-worker iterator: every worker has its own, over its own dataset. The iterator is created on
// a worker before the first closure that draws from it is sent there, and again after the worker
// was lost. The datasets are made in the client program, by a function of the user.
//
// The resource decides which elements closures draw: it allots them by number, and keeps an account
// of those that were used (allotted_elements.h). So it does not matter how often a worker was
// replaced. Thread-safe.
class WorkerResource {
 public:
  using DatasetFunction = std::function<Dataset(const InputContext&)>;

  // The iterators of the workers have seeds that follow from `seed`. `is_constant` is true if all
  // elements of a worker are the same one, so that closures take that of the worker they run on.
  WorkerResource(uint64_t seed, DatasetFunction function, bool is_constant = false);

  // Returns an id that is unique within the process.
  uint64_t id() const { return id_; }
  // Returns the id by which workers know a worker's iterator; 0 if it has no dataset.
  uint64_t edition(int worker) const;
  // Adds the editions of all workers to `editions`.
  void add_editions(std::set<uint64_t>& editions) const;
  // Calls the user's function, which may throw.
  Dataset make_dataset(const InputContext& context) const { return function_(context); }
  // Gives a worker its dataset. Its iterator begins at the first element.
  void set_dataset(int worker, int pipeline, Dataset dataset);
  bool has_dataset(int worker) const;
  void forget_worker(int worker);
  // Returns nullopt if no dataset was made for the worker: the resource belongs to another
  // coordinator.
  std::optional<WorkerIterator> iterator(int worker) const;

  // Allots the next `count` elements of a worker's iterator to a closure. Has edition 0 if there is
  // no such iterator.
  AllottedElements allot(int worker, uint64_t count);
  // Returns true if a closure that runs again draws these elements again.
  bool can_keep(const AllottedElements& elements) const;
  // Notes that a closure has used the elements, or has not: then they are allotted again. Elements
  // of earlier editions are ignored.
  void note_used(const AllottedElements& elements);
  void put_back(const AllottedElements& elements);

  // Returns the positions of the workers' iterators, in the order of the workers. Elements of
  // closures that have not ended count as unused.
  absl::StatusOr<std::vector<IteratorPosition>> positions() const;
  // Lets closures that are sent from now on draw from these positions. If there are more or fewer
  // positions than workers, all of them must be at the first element.
  absl::Status restore(const std::vector<IteratorPosition>& positions);
  // Returns the dataset of the first worker in readable form.
  std::string describe() const;

  // Returns an element of zeros with the shapes of the first dataset's elements. Other workers'
  // elements may have other shapes.
  Element example() const;

 private:
  struct Account {
    WorkerIterator iterator;
    UsedNumbers used;   // Elements that closures have used.
    UsedNumbers taken;  // These, and elements that are allotted.
  };

  std::string describe_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the account that allotted elements belong to, or null if there is none any more.
  Account* account_of(const AllottedElements& elements) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t id_;
  const uint64_t seed_;
  const DatasetFunction function_;
  const bool is_constant_;
  mutable Mutex mutex_;
  std::map<int, Account> accounts_ ABSL_GUARDED_BY(mutex_);  // By worker.
  Element example_ ABSL_GUARDED_BY(mutex_);
};

// The resources of a coordinator. Holds them weakly. Thread-safe.
class WorkerResources {
 public:
  explicit WorkerResources(int replicas) : replicas_(replicas) {}

  // Makes a resource with a dataset for every worker, including workers that are added later. It
  // exists as long as the caller, a copy of its handle or a closure holds it.
  std::shared_ptr<WorkerResource> make(WorkerResource::DatasetFunction function,
                                       bool is_constant = false);
  // Makes datasets for the workers that have none yet. Calls functions of the user; if one throws,
  // nothing has changed. Must not be called by two threads at once.
  void prepare_workers(const std::set<int>& workers);
  // Replaces the workers. The new workers must be prepared, and removed workers must not be used
  // any more.
  void set_workers(const std::set<int>& workers);

  // Returns true if make() of this object has made the resource, which the caller holds.
  bool has(uint64_t resource) const;
  // Returns those of the editions of resources that do not exist any more.
  std::vector<uint64_t> unused(const std::set<uint64_t>& editions) const;

 private:
  InputContext context_of(int worker, const std::set<int>& workers) const;
  // Returns the resources that still exist.
  std::vector<std::shared_ptr<WorkerResource>> held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int replicas_;
  mutable Mutex mutex_;
  uint64_t made_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of resources made so far.
  std::set<int> workers_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<WorkerResource>> resources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
