#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/element_account.h"
#include "trireme/data/dataset.h"
#include "trireme/data/input_context.h"

namespace trireme::internal {

// A per-worker value: every worker has its own iterator, over its own dataset or over one that all
// workers share. The iterator is created on a worker before the first closure that draws from it is
// sent there, and again after the worker was lost. The datasets are made in the client program, by
// a function of the user. An account decides which elements closures draw. Thread-safe.
class WorkerResource {
 public:
  using DatasetFunction = std::function<Dataset(const InputContext&)>;

  // Makes a resource whose workers have datasets of their own. For the other arguments see
  // PerWorkerAccount.
  WorkerResource(uint64_t seed, DatasetFunction function, bool is_constant);
  // Makes a resource whose workers share a dataset. For the other arguments see DynamicAccount.
  WorkerResource(uint64_t seed, const Dataset& dataset, uint64_t epochs);

  // Returns an id that is unique within the process.
  uint64_t id() const { return id_; }
  // Returns the account from which closures that are scheduled now draw.
  std::shared_ptr<ElementAccount> account() const;
  // Lets closures that are scheduled from now on draw from the first elements again, with the next
  // seeds. Closures that were scheduled before keep their account.
  void restart();

  // Calls the user's function, which may throw.
  Dataset make_dataset(const InputContext& context) const { return function_(context); }
  // Gives a worker its dataset. Its iterators begin at the first element.
  void set_dataset(int worker, int pipeline, const Dataset& dataset);
  bool has_dataset(int worker) const { return account()->has_dataset(worker); }
  void forget_worker(int worker);
  // Lets other workers draw the elements that were kept for a worker that is lost.
  void release_worker(int worker);
  // Makes all calls that ElementAccount::on_change() has promised.
  void notify();
  // Adds the ids of all iterators that closures may draw from to `editions`.
  void add_editions(std::set<uint64_t>& editions) const;

  // Do the same as those of the account. There is no position while closures from before restart()
  // are not done, since it could not tell which of their elements were used.
  absl::StatusOr<std::vector<IteratorPosition>> positions() const;
  absl::Status restore(const std::vector<IteratorPosition>& positions);
  std::string describe() const { return account()->describe(); }

  // Returns an element of zeros with the shapes of the first dataset's elements. Other workers'
  // elements may have other shapes.
  Element example() const;

 private:
  // Returns the accounts from which closures may draw.
  std::vector<std::shared_ptr<ElementAccount>> accounts() const;

  const uint64_t id_;
  const DatasetFunction function_;
  mutable Mutex mutex_;
  std::shared_ptr<ElementAccount> account_ ABSL_GUARDED_BY(mutex_);
  // Accounts from before restart(). Closures own them.
  std::vector<std::weak_ptr<ElementAccount>> earlier_ ABSL_GUARDED_BY(mutex_);
  Element example_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
