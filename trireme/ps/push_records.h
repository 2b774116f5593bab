#pragma once

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/ps/push_id.h"

namespace trireme {

// A source of pushes that is registered with a server: a client program or a coordinator. Its
// pushes are accepted until it ends. Pushes below its watermark are decided. The watermark never
// falls, and an ended writer stays ended. Thread-safe.
class Writer {
 public:
  uint64_t watermark() const { return watermark_.load(std::memory_order_acquire); }
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Raises the watermark, unless it is that high already.
  void raise_watermark(uint64_t watermark);
  void end() { ended_.store(true, std::memory_order_release); }

 private:
  std::atomic<uint64_t> watermark_ = 0;
  std::atomic<bool> ended_ = false;
};

// The writers that are registered with a server. A writer must begin before it pushes. So a server
// need not remember writers that have ended: pushes of unknown writers are rejected. Thread-safe.
class Writers {
 public:
  static constexpr size_t kMostWriters = 1 << 16;

  // Registers a writer. Has no effect if it is registered already. Fails with RESOURCE_EXHAUSTED
  // beyond kMostWriters.
  absl::Status begin(uint64_t writer);
  // Ends and removes a writer and returns it, or returns null if it is not registered.
  std::shared_ptr<Writer> end(uint64_t writer);
  // Raises the writer's watermark and returns the writer. Fails with ABORTED if the push is already
  // decided: it is below the watermark, or its writer has ended or never began.
  absl::StatusOr<std::shared_ptr<Writer>> admit(const PushId& id, uint64_t watermark);

  size_t size() const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Writer>> writers_ ABSL_GUARDED_BY(mutex_);
};

// Returns the ABORTED error for a push that is already decided.
[[nodiscard]] absl::Status already_decided(const PushId& id);

// Records which pushes a shard has applied. The shard's lock guards the records as well as the
// data, so that the two never differ. A push takes one bit, in chunks of consecutive sequences: the
// size depends on the distance from the watermark to the newest push, not on the number of pushes
// or their order. Pushes below the watermark of their writer are forgotten. Not thread-safe.
class PushRecords {
 public:
  // Limit beyond which pushes are rejected: a writer that never raises its watermark must not fill
  // the memory.
  static constexpr size_t kMostChunks = 1 << 16;
  static constexpr uint64_t kChunk = 512;  // number of sequences in a chunk

  enum class Verdict {
    kNew,       // not applied yet
    kRepeated,  // applied before
    kDecided,   // below the watermark, or the writer has ended
    kTooMany,   // cannot be recorded, since the limit is reached
  };

  // Says what to do with a push. If it is kNew, the caller must apply it and call add() before it
  // releases the shard's lock.
  Verdict classify(const std::shared_ptr<Writer>& writer, const PushId& id);
  void add(const std::shared_ptr<Writer>& writer, const PushId& id);

  // Drops the records of ended writers and of pushes below the watermarks.
  void forget();

  size_t chunks() const;
  size_t bytes() const { return chunks() * sizeof(Chunk); }

 private:
  struct Chunk {
    uint32_t round;
    uint64_t index;             // the chunk covers the sequences from kChunk * index on
    std::bitset<kChunk> taken;  // a bit is set if the push was applied
  };
  struct WriterRecords {
    std::shared_ptr<Writer> writer;
    uint64_t forgotten_below = 0;  // watermark at the last forget_below() that dropped chunks
    std::vector<Chunk> chunks;     // sorted by round, then by index

    void forget_below(uint64_t watermark);
    // Returns the chunk of a push, or the position at which to insert it.
    std::vector<Chunk>::iterator find(const PushId& id);
    bool is_chunk_of(std::vector<Chunk>::iterator chunk, const PushId& id) const;
  };

  // Returns the records of a writer, and adds an empty list for a new one.
  WriterRecords& records_of(const std::shared_ptr<Writer>& writer);

  std::vector<WriterRecords> writers_;  // one for each writer that pushes to the shard; few
};

}  // namespace trireme
