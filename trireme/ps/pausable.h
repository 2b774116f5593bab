#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"

namespace trireme::internal {

// A writer of updates that is paused. Its updates below the sequence `below` were applied or are
// rejected; it has sent no others.
struct PausedWriter {
  uint64_t writer = 0;
  uint64_t below = 0;
};

// An object that sends updates to parameter servers, and that can be held at a point where none is
// under way. Thread-safe.
class Pausable {
 public:
  virtual ~Pausable() = default;

  // Holds the object paused until it is destroyed.
  class Pause {
   public:
    virtual ~Pause() = default;
    virtual PausedWriter writer() const = 0;
  };
  // Blocks until no update is under way, and every unit of work has applied all its updates or
  // none. Work that has not begun to push may end until `drain_until`, and is postponed after that.
  // Returns an error at `limit` that names the task that it waits for; the object then goes on.
  virtual absl::StatusOr<std::unique_ptr<Pause>> pause(Time drain_until, Time limit) = 0;
};

}  // namespace trireme::internal
