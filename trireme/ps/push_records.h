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

// A source of pushes that a server knows: its pushes are taken while it has not ended, and those
// below its watermark are decided. Both only ever change one way. Thread-safe.
class Writer {
 public:
  uint64_t watermark() const { return watermark_.load(std::memory_order_acquire); }
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  void raise_watermark(uint64_t watermark);
  void end() { ended_.store(true, std::memory_order_release); }

 private:
  std::atomic<uint64_t> watermark_ = 0;
  std::atomic<bool> ended_ = false;
};

// The writers of a server. A writer has to begin before it pushes, so that one that has ended need
// not be remembered: it is unknown. Thread-safe.
class Writers {
 public:
  static constexpr size_t kMostWriters = 1 << 16;

  // Beginning again changes nothing.
  absl::Status begin(uint64_t writer);
  // Nothing when it is not known.
  std::shared_ptr<Writer> end(uint64_t writer);
  // ABORTED when the push is decided already: it is below the watermark, or its writer has ended.
  absl::StatusOr<std::shared_ptr<Writer>> admit(const PushId& id, uint64_t watermark);

  size_t size() const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Writer>> writers_ ABSL_GUARDED_BY(mutex_);
};

[[nodiscard]] absl::Status already_decided(const PushId& id);

// Which pushes a shard has taken, kept beside its data and under the same lock, so that data and
// records never differ. A bit for each, in chunks of neighbouring sequences: the size follows the
// distance from the watermark to the newest push, not the number of pushes nor their order. What is
// below the watermark of its writer is forgotten. Not thread-safe.
class PushRecords {
 public:
  // Beyond it pushes are refused: a writer that never raises its watermark must not fill memory.
  static constexpr size_t kMostChunks = 1 << 16;
  static constexpr uint64_t kChunk = 512;  // sequences

  enum class Verdict { kNew, kRepeated, kDecided, kTooMany };

  // Whether to do it. kNew: its change has to be made, and add() called, before the lock is left.
  Verdict ask(const std::shared_ptr<Writer>& writer, const PushId& id);
  void add(const std::shared_ptr<Writer>& writer, const PushId& id);

  // Forgets what can be: ended writers, and what is below watermarks.
  void forget();

  size_t chunks() const;
  size_t bytes() const { return chunks() * sizeof(Chunk); }

 private:
  struct Chunk {
    uint32_t round;
    uint64_t index;  // of sequences from kChunk * index on
    std::bitset<kChunk> taken;
  };
  struct WriterRecords {
    std::shared_ptr<Writer> writer;
    uint64_t forgotten_below = 0;
    std::vector<Chunk> chunks;  // by round, then by index

    void forget_below(uint64_t watermark);
    // The chunk of a push, or where it belongs.
    std::vector<Chunk>::iterator find(const PushId& id);
    bool is_chunk_of(std::vector<Chunk>::iterator chunk, const PushId& id) const;
  };

  WriterRecords& records_of(const std::shared_ptr<Writer>& writer);

  std::vector<WriterRecords> writers_;  // few: those that push to this shard now
};

}  // namespace trireme
