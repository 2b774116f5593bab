#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closure_programs.h"
#include "trireme/coordinator/worker_resource.h"

namespace trireme::internal {

// Keeps track of the programs and resources that a worker has of a coordinator. Not thread-safe:
// guarded by the dispatcher's lock.
class WorkerInventory {
 public:
  // A program or a resource; neither if both are null.
  struct Item {
    std::shared_ptr<const ClosureProgram> program = nullptr;
    std::shared_ptr<WorkerResource> resource = nullptr;

    bool empty() const { return program == nullptr && resource == nullptr; }
  };

  // Returns the first item that the worker lacks to run the closures, an empty one if it has all.
  Item first_missing(const std::vector<ClosurePtr>& closures) const;
  void add(const Item& item);
  // Removes the items that nothing uses any more and returns their ids.
  std::vector<uint32_t> drop_unused_programs(const ProgramsInUse& in_use);
  std::vector<uint64_t> drop_unused_resources(const WorkerResources& resources);
  void clear();

 private:
  std::set<uint32_t> programs_;
  std::set<uint64_t> resources_;
};

}  // namespace trireme::internal
