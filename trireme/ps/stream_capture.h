#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/ps/change_watcher.h"
#include "trireme/ps/saved_image.h"

namespace trireme::internal {

// Keeps the contents that variables had when a save began, while they change. Variables call it
// before each change, and it copies the segments that were not written yet into a pool of limited
// size; a change that finds the pool full waits until there is room. Threads that write the file
// ask it for the blocks to write. Thread-safe.
class StreamCapture final : public ChangeWatcher {
 public:
  static constexpr uint64_t kPoolBytes = uint64_t{32} << 20;
  static constexpr size_t kRunBlocks = 4;  // most blocks that are written together

  // After `stuck_after` in which nothing was written, changes wait no longer and the capture ends.
  StreamCapture(std::shared_ptr<const SavedImage> image, Duration stuck_after);

  void before_change(const StoredVariable& variable, const at::Tensor& ids) override;

  // Consecutive blocks of the file.
  struct Run {
    size_t first = 0;
    size_t count = 0;
  };
  // Returns blocks that the caller has to write: those first that changes have copied. Returns
  // nullopt if all blocks are taken, or if the capture has ended.
  std::optional<Run> claim();
  // Copies the blocks, as they were when the save began, to `out`. Returns false if the capture has
  // ended.
  bool copy(const Run& run, char* out);
  // Notes that blocks were written to the file.
  void note_written();

  // Ends the capture: changes proceed without copies, and the pool is freed.
  void end();
  // Returns true if it has ended because nothing was written for too long.
  bool stuck() const { return stuck_; }

  // Returns the checksums of the segments. Call it after all blocks were copied.
  const std::vector<uint32_t>& crcs() const { return crcs_; }

  struct Stats {
    Duration waited = {};        // time that changes have waited for room, in all
    Duration longest_wait = {};  // longest time that one change has waited
    uint64_t pool_peak = 0;      // most bytes that the pool had
  };
  Stats stats() const;

 private:
  enum State : uint8_t {
    kLive,     // the variable has the contents to be saved
    kCopying,  // a thread copies them
    kCopied,   // they are in the pool or in a buffer of a writing thread
  };

  // Makes sure that a segment may change. `waited` is the time that the change has waited for room.
  void secure(size_t segment, Duration& waited);
  // Waits until a segment may change or the caller has to copy it into the pool. Returns the memory
  // for the copy in the latter case.
  char* begin_copy(size_t segment, Duration& waited);
  void finish_copy(size_t segment);
  // Waits until no thread is in copy().
  void wait_for_readers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t cost(size_t segment) const;
  bool has_room(size_t segment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void release_pooled(size_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  using Memory = std::unique_ptr<char[]>;

  const std::shared_ptr<const SavedImage> image_;
  const Duration stuck_after_;
  std::atomic<bool> ended_ = false;           // written under mutex_
  std::atomic<bool> stuck_ = false;           // written under mutex_
  std::vector<std::atomic<uint8_t>> states_;  // of each segment; written under mutex_
  std::vector<uint32_t> crcs_;                // of each segment; written by the writing threads
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<bool> claimed_ ABSL_GUARDED_BY(mutex_);   // true for each block that is claimed
  std::deque<size_t> touched_ ABSL_GUARDED_BY(mutex_);  // blocks with segments in the pool
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;             // blocks below it are claimed
  std::vector<Memory> pooled_ ABSL_GUARDED_BY(mutex_);  // copy of each segment, or null
  std::vector<Memory> free_ ABSL_GUARDED_BY(mutex_);    // memory of blocks for the next copies
  uint64_t pool_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int readers_ ABSL_GUARDED_BY(mutex_) = 0;  // number of threads in copy()
  Time written_at_ ABSL_GUARDED_BY(mutex_);  // time at which blocks were last written
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
