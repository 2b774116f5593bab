#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "trireme/base/mutex.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Elements that closures have drawn and cannot use yet, because no function takes their shapes.
// They are kept until the closure comes again, and go back to their sources if it never will.
// Thread-safe.
class KeptDraws {
 public:
  struct Entry {
    Draws draws;
    uint32_t repetition = 0;  // repetition of the closure that the elements are for
  };

  void keep(uint64_t sequence, Entry entry);
  // Returns nullopt if nothing is kept for the closure.
  std::optional<Entry> take(uint64_t sequence);
  // Puts back the elements of all closures below.
  void drop_below(uint64_t sequence);

 private:
  Mutex mutex_;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by the closure's sequence
};

}  // namespace trireme::internal
