#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "trireme/base/mutex.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Keeps elements that closures have drawn and cannot use yet, because no function takes their
// shapes. They are kept until the closure is sent again, or returned to their sources if the
// closure is decided before that. Thread-safe.
class KeptDraws {
 public:
  struct Entry {
    Draws draws;
    uint32_t repetition = 0;  // Repetition of the closure that the elements are for.
  };

  // Keeps elements for the closure with this sequence. Puts back what was kept for it before.
  void keep(uint64_t sequence, Entry entry);
  // Removes and returns the elements of the closure, or returns nullopt if there are none.
  std::optional<Entry> take(uint64_t sequence);
  // Puts back the elements of all closures below `sequence`.
  void drop_below(uint64_t sequence);

 private:
  Mutex mutex_;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // By the closure's sequence.
};

}  // namespace trireme::internal
