#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure_environment.h"
#include "trireme/coordinator/received_closure.h"

namespace trireme::internal {

class ClosureBatch;

// The running batches of one coordinator, so that they can be cancelled. Thread-safe.
class RunningBatches {
 public:
  // Stops the batches all of whose sequences are below `sequence`.
  void stop_below(uint64_t sequence);
  // Stops closures of all batches that have not begun to push.
  void stop_unpushed();

 private:
  friend class ClosureBatch;

  Mutex mutex_;
  std::set<ClosureBatch*> batches_ ABSL_GUARDED_BY(mutex_);
};

// A batch of closures that arrived in one request and are answered in one response. Thread-safe.
// Kept alive by the runs of its closures.
class ClosureBatch {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<std::vector<RunResult>>)>;

  // `environment` must keep `running` alive too. `done` is called once, with the answers of all
  // `size` closures. `last_sequence` is the highest sequence of the batch, including repetitions.
  ClosureBatch(std::shared_ptr<ClosureEnvironment> environment, RunningBatches& running,
               size_t size, uint64_t watermark, uint64_t last_sequence, std::stop_source stop,
               Done done);
  ~ClosureBatch();

  ClosureBatch(const ClosureBatch&) = delete;
  ClosureBatch& operator=(const ClosureBatch&) = delete;

  ClosureEnvironment& environment() const { return *environment_; }
  // Returns the sequence below which all sequences were decided when the batch was sent.
  uint64_t watermark() const { return watermark_; }
  bool stopped() const { return stop_.stop_requested(); }
  std::stop_token stop_token() const { return stop_.get_token(); }
  // Returns a token that also stops closures that have not begun to push.
  std::stop_token unpushed_stop_token() const { return unpushed_stop_.get_token(); }

  // Notes that a closure failed because a parameter server could not be used. Closures that begin
  // after that fail with the same error. Otherwise those that take turns would wait for the server
  // one after the other, and none could run elsewhere meanwhile.
  void note_server_failure(const absl::Status& error);
  // Returns the error of note_server_failure(), or OK.
  absl::Status server_failure() const;

  // Sets the answer of one closure. The call that sets the last one calls `done`.
  void set(size_t index, RunResult answer);

 private:
  friend class RunningBatches;

  const std::shared_ptr<ClosureEnvironment> environment_;
  RunningBatches& running_;
  const uint64_t watermark_;
  const uint64_t last_sequence_;
  const std::stop_source stop_;
  const std::stop_source unpushed_stop_;  // Requested together with `stop_`, or earlier.
  const std::stop_callback<std::function<void()>> on_stop_;
  std::atomic<size_t> left_;  // Number of closures without an answer.
  std::vector<RunResult> answers_;
  Done done_;
  std::atomic<bool> has_server_failure_ = false;  // Saves the lock of most batches.
  mutable Mutex mutex_;
  absl::Status server_failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
