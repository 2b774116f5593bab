#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closure_functions.h"
#include "trireme/coordinator/element_account.h"
#include "trireme/coordinator/worker_resources.h"

namespace trireme::internal {

// Keeps track of the functions and resources of a coordinator that a worker has. Not thread-safe:
// guarded by the dispatcher's lock.
class WorkerInventory {
 public:
  // A function or a resource. Empty if both are null.
  struct Item {
    std::shared_ptr<const ClosureFunction> function = nullptr;
    std::shared_ptr<ElementAccount> account = nullptr;  // That of the resource.
    int worker = 0;        // Index of the worker whose iterator of the resource is to be created.
    uint64_t edition = 0;  // Edition of that iterator.

    bool empty() const { return function == nullptr && account == nullptr; }
  };

  // Returns the first item that the worker lacks to run the closures, or an empty item if it has
  // all of them. The closures have elements allotted.
  Item first_missing(const std::vector<ClosurePtr>& closures) const;
  void add(const Item& item);
  // Remove the items that nothing uses any more, and return the ids of functions or the editions of
  // resources.
  std::vector<uint32_t> drop_unused_functions(const FunctionsInUse& in_use);
  std::vector<uint64_t> drop_unused_resources(const WorkerResources& resources);
  void clear();

 private:
  std::set<uint32_t> functions_;
  std::set<uint64_t> resources_;  // Editions.
};

}  // namespace trireme::internal
