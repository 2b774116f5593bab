#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/runtime/master_graph.h"

namespace trireme::internal {

// Keeps track of the parts that a master has registered with tasks, and releases those that are no
// longer used. A registration goes out of use when a task was lost and the parts were registered
// again, when its graph was evicted, or when not all of its parts could be registered. Thread-safe.
class MasterRegistrations {
 public:
  // Adds a registration of the session. Must be called before its parts are sent, so that parts of
  // a registration that fails halfway are released too.
  void add(uint64_t session, const std::shared_ptr<const MasterGraph::Registered>& registered);
  // Asks tasks to drop the parts of registrations that neither a graph nor a step holds any more.
  // Does not wait for them.
  void release_unused();
  // Forgets the registrations of a session that ends: its tasks drop its parts by themselves.
  void forget_session(uint64_t session);

 private:
  struct Entry {
    uint64_t session = 0;
    uint64_t id = 0;
    std::vector<std::shared_ptr<TaskStub>> tasks;
    std::weak_ptr<const MasterGraph::Registered>
        registered;  // expires once it is not used any more
  };

  Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
