#pragma once

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/ps/push_id.h"

namespace trireme {

// The client program that a writer belongs to.
struct WriterOwner {
  std::string job;          // id of the job
  uint64_t generation = 0;  // generation of the job
  uint64_t member = 0;      // member of the generation

  bool operator==(const WriterOwner&) const = default;
};

// A source of pushes that is registered with a server: a client program or a coordinator. Its
// pushes are accepted while its lease runs, until it ends. Pushes below its watermark are decided.
// The watermark never falls, and an ended writer stays ended. A lease that has run out can be
// renewed. Thread-safe. The clock must outlive it.
class Writer {
 public:
  explicit Writer(WriterOwner owner = {}, Time lease_end = Time::max(),
                  const Clock& clock = Clock::real())
      : owner_(std::move(owner)), clock_(clock), lease_end_(lease_end) {}

  const WriterOwner& owner() const { return owner_; }
  uint64_t watermark() const { return watermark_.load(std::memory_order_acquire); }
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  Time lease_end() const { return lease_end_.load(std::memory_order_acquire); }

  // Raises the watermark, unless it is that high already.
  void raise_watermark(uint64_t watermark);
  // Raises the watermark to `fenced_below` and then extends the lease, unless it lasts that long
  // already. So a push below `fenced_below` that the old lease rejects is not admitted by the new.
  void renew(Time lease_end, uint64_t fenced_below);
  // Ends the writer. `why` completes the sentence "the push is rejected: ...".
  void end(const std::string& why);

  // Returns true if nothing of the writer is accepted: it has ended, or its lease has run out.
  bool is_over() const;
  // Returns true if a push is decided: the writer is over, or the push is below the watermark.
  bool rejects(const PushId& id) const;
  // Returns the ABORTED error, with the reason, for a push that is rejected.
  [[nodiscard]] absl::Status rejection(const PushId& id) const;

 private:
  // Returns the reason for the end of the writer.
  std::string reason() const;

  const WriterOwner owner_;
  const Clock& clock_;
  std::atomic<uint64_t> watermark_ = 0;
  std::atomic<bool> ended_ = false;
  std::atomic<Time> lease_end_;
  mutable Mutex mutex_;
  std::string why_ ABSL_GUARDED_BY(mutex_);  // reason for the end
};

// The writers that are registered with a server. A writer must begin before it pushes. So a server
// need not remember all writers that have ended: pushes of unknown writers are rejected.
//
// A writer whose lease has run out is kept until end_lapsed() removes it, because its program may
// have been stopped for a moment only. A renewal then finds the watermark and the records as they
// were. Thread-safe. The clock must outlive it.
class Writers {
 public:
  static constexpr size_t kMostWriters = 1 << 16;
  // Number of ended writers for which the reason is remembered.
  static constexpr size_t kMostReasons = 256;

  explicit Writers(const Clock& clock = Clock::real()) : clock_(clock) {}

  // Registers a writer, or extends its lease if it is registered already. Fails with ABORTED if the
  // writer has ended, and with RESOURCE_EXHAUSTED beyond kMostWriters.
  absl::Status begin(uint64_t writer, WriterOwner owner = {}, Time lease_end = Time::max());
  // Raises the writer's watermark and extends its lease (Writer::renew). Has no effect on a writer
  // that is not registered.
  void renew(uint64_t writer, Time lease_end, uint64_t fenced_below);
  // Raises the writer's watermark. Has no effect on a writer that is not registered, whose pushes
  // are rejected anyway.
  void raise_watermark(uint64_t writer, uint64_t watermark);

  // Ends and removes a writer. Returns false if it is not registered. `why` completes the sentence
  // "the push is rejected: ..." in the errors of its late pushes.
  bool end(uint64_t writer, const std::string& why);
  // Ends and removes the writers of all generations of the job below `generation`, and returns
  // their number.
  size_t end_generations(const std::string& job, uint64_t generation, const std::string& why);
  // Ends and removes the writers of one member, and returns their number.
  size_t end_member(const WriterOwner& owner, const std::string& why);
  // Ends and removes the writers whose lease ran out `kept` ago or earlier, and returns their
  // number. To be called every few seconds.
  size_t end_lapsed(Duration kept);

  // Raises the writer's watermark and returns the writer. Fails with ABORTED, and the reason, if
  // the push is already decided: it is below the watermark, its writer has ended or never began, or
  // the writer's lease has run out.
  absl::StatusOr<std::shared_ptr<Writer>> admit(const PushId& id, uint64_t watermark);

  size_t size() const;

 private:
  using Matches = std::function<bool(const Writer&)>;

  std::shared_ptr<Writer> find(uint64_t writer) const;
  // Ends and removes the writers that match, and returns their number.
  size_t end_if(const Matches& matches, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Remembers the reason for the end of a writer.
  void remember(uint64_t writer, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the reason to reject a push of a writer that is not registered.
  std::string why_unknown(uint64_t writer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Writer>> writers_ ABSL_GUARDED_BY(mutex_);
  // Writers that ended last, with the reason, oldest first.
  std::deque<std::pair<uint64_t, std::string>> ended_ ABSL_GUARDED_BY(mutex_);
};

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
    kDecided,   // its writer rejects it (Writer::rejects)
    kTooMany,   // cannot be recorded, since the limit is reached
  };

  // Says what to do with a push. If it is kNew, the caller must apply it and call add() before it
  // releases the shard's lock.
  Verdict classify(const std::shared_ptr<Writer>& writer, const PushId& id);
  void add(const std::shared_ptr<Writer>& writer, const PushId& id);

  // Drops the records of ended writers and of pushes below the watermarks.
  void forget();
  // Returns true if forget() would drop something.
  bool can_forget() const;

  size_t chunks() const;
  // Returns the number of writers that have pushed and have not been forgotten.
  size_t writers() const { return writers_.size(); }
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
    // Returns true if forget_below() would look for chunks to drop.
    bool is_behind(uint64_t watermark) const {
      return watermark / kChunk > forgotten_below / kChunk;
    }
    // Returns the chunk of a push, or the position at which to insert it.
    std::vector<Chunk>::iterator find(const PushId& id);
    bool is_chunk_of(std::vector<Chunk>::iterator chunk, const PushId& id) const;
  };

  // Returns the records of a writer, and adds an empty list for a new one.
  WriterRecords& records_of(const std::shared_ptr<Writer>& writer);

  std::vector<WriterRecords> writers_;  // one for each writer that pushes to the shard; few
};

}  // namespace trireme
