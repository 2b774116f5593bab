#include "trireme/coordinator/kept_draws.h"

#include <utility>
#include <vector>

namespace trireme::internal {

void KeptDraws::keep(uint64_t sequence, Entry entry) {
  MutexLock lock(mutex_);
  entries_.erase(sequence);
  entries_.emplace(sequence, std::move(entry));
}

std::optional<KeptDraws::Entry> KeptDraws::take(uint64_t sequence) {
  MutexLock lock(mutex_);
  auto found = entries_.extract(sequence);
  if (!found) return std::nullopt;
  return std::move(found.mapped());
}

void KeptDraws::drop_below(uint64_t sequence) {
  // Destroyed after the lock is released, because putting back takes the locks of the sources.
  std::vector<Entry> dropped;
  MutexLock lock(mutex_);
  while (!entries_.empty() && entries_.begin()->first < sequence) {
    dropped.push_back(std::move(entries_.extract(entries_.begin()).mapped()));
  }
}

}  // namespace trireme::internal
