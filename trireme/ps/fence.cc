#include "trireme/ps/fence.h"

#include "trireme/base/mutex.h"

// A push asks under the lock of each shard whether its writer rejects it (PushRecords::classify),
// and changes the shard under the same lock. So once the watermark is raised and the lock was free
// for a moment, every push below the watermark either is done with this shard or will be rejected.
//
// The lock is taken for reading. Locking for writing would count as a change of the variable, and
// would keep all readers out meanwhile.
namespace trireme::internal {

void wait_for_updates(const VariableStore& store) {
  for (const auto& variable : store.list()) {
    const ReaderLock lock(variable->mutex);
  }
}

void fence_writer(Writers& writers, const VariableStore& store, uint64_t writer, uint64_t below) {
  writers.raise_watermark(writer, below);
  wait_for_updates(store);
}

}  // namespace trireme::internal
