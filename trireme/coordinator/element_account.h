#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/coordinator/allotment.h"
#include "trireme/data/dataset.h"
#include "trireme/data/used_numbers.h"

namespace trireme::internal {

// One worker's iterator of a resource, as it is to be created on workers.
struct WorkerIterator {
  uint64_t edition = 0;  // Id by which workers know it.
  Dataset dataset;
  uint64_t seed = 0;
  bool in_ranges = false;  // True if the numbers of its elements are places in ranges (ranges.h).
};

// Returns an id that is unique within the process, so that a resource of another coordinator is
// never mistaken for one of this coordinator.
uint64_t new_resource_id();

// Elements for a closure, or the reason why there are none.
struct Allotment {
  enum class Outcome {
    kReady,  // `elements` are those that were asked for.
    kLater,  // All that are left are allotted to other closures, which may return them.
    kEnded,  // There are only `left` elements.
  };
  Outcome outcome = Outcome::kReady;
  AllottedElements elements = {};
  uint64_t left = 0;
  uint64_t changes = 0;  // Number of changes of the account so far, for on_change().
};

// Decides which elements of a resource closures draw: allots them by number, and keeps an account
// of those that were used (allotted_elements.h). So it does not matter how often a worker was
// replaced. A closure holds the account that was current when it was scheduled. Implementations are
// thread-safe.
class ElementAccount {
 public:
  explicit ElementAccount(uint64_t resource) : resource_(resource) {}
  virtual ~ElementAccount() = default;

  ElementAccount(const ElementAccount&) = delete;
  ElementAccount& operator=(const ElementAccount&) = delete;

  // Returns the id of the WorkerResource.
  uint64_t resource() const { return resource_; }
  // Returns true if all workers share one dataset.
  virtual bool is_shared() const = 0;

  // Returns true if the worker needs no further dataset.
  virtual bool has_dataset(int worker) const = 0;
  // Gives a worker its dataset. Its iterator begins at the first element.
  virtual void set_dataset(int worker, int pipeline, Dataset dataset) = 0;
  // Forgets a worker that was removed.
  virtual void forget_worker(int worker) = 0;
  // Lets other workers draw the elements that were kept for a worker that is lost.
  virtual void release_worker(int worker) = 0;

  // Returns nullopt if there is no dataset for the worker: the resource belongs to another
  // coordinator.
  virtual std::optional<WorkerIterator> iterator(int worker) const = 0;
  // Adds the ids of all iterators to `editions`.
  virtual void add_editions(std::set<uint64_t>& editions) const = 0;

  // Allots the next `count` elements to a closure that the worker is to run, or none. The edition
  // is 0 if the worker has no iterator.
  virtual Allotment allot(int worker, uint64_t count) = 0;
  // Returns true if a closure that runs again draws these elements again.
  virtual bool can_keep(const AllottedElements& elements) const = 0;
  // Notes that a closure has used the elements, or has not: then they are allotted again. Elements
  // of earlier editions are ignored.
  virtual void note_used(const AllottedElements& elements) = 0;
  virtual void put_back(const AllottedElements& elements) = 0;
  // Returns true if there certainly is an element with this number, which was allotted.
  virtual bool exists(uint64_t /*number*/) const { return false; }
  // Notes that a worker found no element with this number. If `is_beyond` is true, its whole range
  // does not exist. Returns true if there may be other elements in its place.
  virtual bool note_end(const AllottedElements& elements, uint64_t number, bool is_beyond) = 0;
  // Calls `callback` on another thread when elements were returned, when all were used, or at once
  // if the account has changed since there were `changes` changes.
  virtual void on_change(uint64_t changes, std::function<void()> callback) = 0;
  // Makes all calls that on_change() has promised.
  virtual void notify() = 0;

  // Returns the positions of the iterators, in the order of the workers. Elements of closures that
  // have not ended count as unused.
  virtual absl::StatusOr<std::vector<IteratorPosition>> positions() const = 0;
  // Lets closures that are sent from now on draw from these positions.
  virtual absl::Status restore(const std::vector<IteratorPosition>& positions) = 0;
  // Returns the dataset, that of the first worker if there are several, in readable form.
  virtual std::string describe() const = 0;
  // Returns an account of the same datasets that begins at their first elements, with the next
  // seeds.
  virtual std::shared_ptr<ElementAccount> begin_again() const = 0;

 private:
  const uint64_t resource_;
};

}  // namespace trireme::internal
