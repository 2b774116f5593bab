#include "trireme/runtime/master_registrations.h"

#include <algorithm>
#include <iterator>
#include <utility>

// The holders of a registration are its graph, until it is registered anew or evicted, and the
// steps in flight over it. A step may still succeed when another one has found a task lost, for
// example if its own part on that task was done. So parts are released when the last holder lets go
// of the registration, and not when the graph does. The weak pointer tells when that is.
namespace trireme::internal {

void MasterRegistrations::add(uint64_t session,
                              const std::shared_ptr<const MasterGraph::Registered>& registered) {
  MutexLock lock(mutex_);
  entries_.push_back({session, registered->id, registered->tasks, registered});
}

void MasterRegistrations::release_unused() {
  std::vector<Entry> unused;
  {
    MutexLock lock(mutex_);
    const auto first = std::partition(entries_.begin(), entries_.end(), [](const Entry& entry) {
      return !entry.registered.expired();
    });
    unused.assign(std::make_move_iterator(first), std::make_move_iterator(entries_.end()));
    entries_.erase(first, entries_.end());
  }
  for (const Entry& entry : unused) {
    for (const auto& task : entry.tasks) task->drop_part(entry.id);
  }
}

void MasterRegistrations::forget_session(uint64_t session) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [&](const Entry& entry) { return entry.session == session; });
}

}  // namespace trireme::internal
