#include "trireme/ps/push_records.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"

// How a push is applied once per shard. Its identity is (writer, sequence, round); retries, and
// other workers that run the same closure again, send it with the same identity.
//
//   1. The server admits the push (Writers::admit): its writer must be registered, and the sequence
//      must not be below the watermark, which the push may raise.
//   2. Each shard, under its own lock, classifies the push. A new one is applied and recorded, a
//      repeated one is acknowledged without effect.
//   3. When all pushes of a sequence were acknowledged, or the client has given up on them, the
//      client raises its watermark. Servers then drop the records, and a copy that arrives late is
//      rejected in step 1 or 2 instead of being applied a second time.
//
// The watermark is checked twice because it can rise, and the writer can end, between the two
// steps. Only the second check is made under the lock that also guards the dropping of records.
namespace trireme {

absl::Status already_decided(const PushId& id) {
  return make_status(
      ErrorCode::kAborted,
      absl::StrCat(
          "push ", id.sequence, ".", id.round, " of ", format_incarnation(id.writer),
          " is already decided: its writer has ended, or has raised its watermark past it"));
}

void Writer::raise_watermark(uint64_t watermark) {
  uint64_t known = watermark_.load(std::memory_order_relaxed);
  while (known < watermark &&
         !watermark_.compare_exchange_weak(known, watermark, std::memory_order_acq_rel)) {
  }
}

absl::Status Writers::begin(uint64_t writer) {
  if (writer == 0) {
    return make_status(ErrorCode::kInvalidArgument,
                       "0 is not a valid writer; use an id such as the program's incarnation");
  }
  MutexLock lock(mutex_);
  if (writers_.contains(writer)) return absl::OkStatus();
  if (writers_.size() >= kMostWriters) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("the server has ", writers_.size(),
                                    " writers, its limit; end those that are done"));
  }
  writers_.emplace(writer, std::make_shared<Writer>());
  return absl::OkStatus();
}

std::shared_ptr<Writer> Writers::end(uint64_t writer) {
  MutexLock lock(mutex_);
  const auto found = writers_.find(writer);
  if (found == writers_.end()) return nullptr;
  std::shared_ptr<Writer> ended = std::move(found->second);
  writers_.erase(found);
  ended->end();
  return ended;
}

absl::StatusOr<std::shared_ptr<Writer>> Writers::admit(const PushId& id, uint64_t watermark) {
  std::shared_ptr<Writer> writer;
  {
    MutexLock lock(mutex_);
    const auto found = writers_.find(id.writer);
    if (found != writers_.end()) writer = found->second;
  }
  if (!writer) return already_decided(id);
  writer->raise_watermark(watermark);
  if (id.sequence < writer->watermark()) return already_decided(id);
  return writer;
}

size_t Writers::size() const {
  MutexLock lock(mutex_);
  return writers_.size();
}

PushRecords::WriterRecords& PushRecords::records_of(const std::shared_ptr<Writer>& writer) {
  const auto found =
      std::find_if(writers_.begin(), writers_.end(),
                   [&](const WriterRecords& known) { return known.writer == writer; });
  if (found != writers_.end()) return *found;
  std::erase_if(writers_, [](const WriterRecords& known) { return known.writer->ended(); });
  writers_.push_back({.writer = writer});
  return writers_.back();
}

PushRecords::Verdict PushRecords::classify(const std::shared_ptr<Writer>& writer,
                                           const PushId& id) {
  // The shard's lock, which the caller holds, also guards the dropping of records. So a push that
  // was admitted before its writer ended or its watermark rose cannot be applied again after its
  // record was dropped.
  const uint64_t watermark = writer->watermark();
  if (writer->ended() || id.sequence < watermark) return Verdict::kDecided;
  WriterRecords& known = records_of(writer);
  known.forget_below(watermark);
  const auto chunk = known.find(id);
  if (known.is_chunk_of(chunk, id)) {
    return chunk->taken[id.sequence % kChunk] ? Verdict::kRepeated : Verdict::kNew;
  }
  // A new chunk is needed. At the limit, other writers may have chunks that can be dropped.
  if (chunks() >= kMostChunks) forget();
  return chunks() < kMostChunks ? Verdict::kNew : Verdict::kTooMany;
}

void PushRecords::add(const std::shared_ptr<Writer>& writer, const PushId& id) {
  WriterRecords& known = records_of(writer);
  auto chunk = known.find(id);
  if (!known.is_chunk_of(chunk, id)) {
    chunk = known.chunks.insert(chunk, {id.round, id.sequence / kChunk, {}});
  }
  chunk->taken[id.sequence % kChunk] = true;
}

void PushRecords::forget() {
  for (WriterRecords& known : writers_) {
    if (known.writer->ended()) {
      known.chunks = {};
    } else {
      known.forget_below(known.writer->watermark());
    }
  }
}

size_t PushRecords::chunks() const {
  size_t count = 0;
  for (const WriterRecords& known : writers_) count += known.chunks.size();
  return count;
}

// Called for every push, so it returns quickly unless the watermark has entered a new chunk.
void PushRecords::WriterRecords::forget_below(uint64_t watermark) {
  if (watermark / kChunk <= forgotten_below / kChunk) return;
  forgotten_below = watermark;
  std::erase_if(chunks, [&](const Chunk& chunk) { return chunk.index < watermark / kChunk; });
}

std::vector<PushRecords::Chunk>::iterator PushRecords::WriterRecords::find(const PushId& id) {
  const std::pair<uint32_t, uint64_t> key(id.round, id.sequence / kChunk);
  return std::lower_bound(chunks.begin(), chunks.end(), key,
                          [](const Chunk& chunk, const auto& value) {
                            return std::pair(chunk.round, chunk.index) < value;
                          });
}

bool PushRecords::WriterRecords::is_chunk_of(std::vector<Chunk>::iterator chunk,
                                             const PushId& id) const {
  return chunk != chunks.end() && chunk->round == id.round && chunk->index == id.sequence / kChunk;
}

}  // namespace trireme
