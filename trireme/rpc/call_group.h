#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/call_and_wait.h"

namespace trireme {

// Counts the answers of calls that were made concurrently, and keeps their first error.
// Thread-safe.
class CallGroup {
 public:
  explicit CallGroup(size_t calls) : left_(calls) {}

  // Takes the answer of one call. Returns nullopt until all have answered, then the first error to
  // arrive, or OK. Memory writes before any of these calls are visible to the thread that gets the
  // result.
  [[nodiscard]] std::optional<absl::Status> on_answer(absl::Status status);

 private:
  Mutex mutex_;
  size_t left_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Makes `calls` calls concurrently and blocks until all have answered. `start(i, done)` starts one
// of them and passes its status to `done`, possibly before it returns. Returns the first error to
// arrive, or OK.
template <typename Start>
absl::Status call_each_and_wait(size_t calls, Start&& start) {
  if (calls == 0) return absl::OkStatus();
  return call_and_wait<absl::Status>([&](auto done) {
    auto group = std::make_shared<CallGroup>(calls);
    for (size_t i = 0; i < calls; ++i) {
      start(i, [group, done](absl::Status status) {
        if (auto result = group->on_answer(std::move(status))) done(*std::move(result));
      });
    }
  });
}

}  // namespace trireme
