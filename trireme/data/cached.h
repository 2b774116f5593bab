#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "trireme/base/mutex.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// The first elements of a step, which all repetitions of one iterator share. Thread-safe.
class CachedElements {
 public:
  explicit CachedElements(int64_t most_bytes = int64_t{64} << 30) : most_bytes_(most_bytes) {}

  // Returns an element, or nullopt if it is not kept.
  std::optional<Element> find(int64_t number) const;
  // Keeps a copy of an element if it is the next one. Returns an error if there is no room for it.
  absl::Status add(int64_t number, const Element& element);
  // Says that there are `count` elements. Completes the cache if it has all of them.
  void end(int64_t count);

  // Returns the number of elements that are kept.
  int64_t size() const;
  // Returns true if these are all elements.
  bool is_complete() const;

 private:
  const int64_t most_bytes_;
  mutable Mutex mutex_;
  std::deque<Element> elements_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
};

// Gives the elements of an input, from `kept` as far as it has them. Adds the others to it. The
// input is opened only if it is needed, always with the same key, so that it does not matter which
// stream has added an element.
StreamPtr<Element> open_cached(std::shared_ptr<CachedElements> kept, uint64_t key,
                               Opener<Element> open);

}  // namespace trireme::internal
