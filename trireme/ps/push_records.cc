#include "trireme/ps/push_records.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"

namespace trireme {

absl::Status already_decided(const PushId& id) {
  return make_status(
      ErrorCode::kAborted,
      absl::StrCat("push ", id.sequence, ".", id.round, " of ", format_incarnation(id.origin),
                   " is already decided: its origin has ended, or has gone on without it"));
}

void PushOrigin::raise_watermark(uint64_t watermark) {
  uint64_t known = watermark_.load(std::memory_order_relaxed);
  while (known < watermark &&
         !watermark_.compare_exchange_weak(known, watermark, std::memory_order_acq_rel)) {
  }
}

absl::Status PushOrigins::begin(uint64_t origin) {
  if (origin == 0) {
    return make_status(ErrorCode::kInvalidArgument, "an origin of pushes cannot be 0");
  }
  MutexLock lock(mutex_);
  if (origins_.contains(origin)) return absl::OkStatus();
  if (origins_.size() >= kMostOrigins) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("the server knows ", origins_.size(),
                                    " origins of pushes, its limit; end those that are done"));
  }
  origins_.emplace(origin, std::make_shared<PushOrigin>());
  return absl::OkStatus();
}

std::shared_ptr<PushOrigin> PushOrigins::end(uint64_t origin) {
  MutexLock lock(mutex_);
  const auto found = origins_.find(origin);
  if (found == origins_.end()) return nullptr;
  std::shared_ptr<PushOrigin> ended = std::move(found->second);
  origins_.erase(found);
  ended->end();
  return ended;
}

absl::StatusOr<std::shared_ptr<PushOrigin>> PushOrigins::admit(const PushId& id,
                                                               uint64_t watermark) {
  std::shared_ptr<PushOrigin> origin;
  {
    MutexLock lock(mutex_);
    const auto found = origins_.find(id.origin);
    if (found != origins_.end()) origin = found->second;
  }
  if (!origin) return already_decided(id);
  origin->raise_watermark(watermark);
  if (id.sequence < origin->watermark()) return already_decided(id);
  return origin;
}

size_t PushOrigins::size() const {
  MutexLock lock(mutex_);
  return origins_.size();
}

PushRecords::OriginRecords& PushRecords::records_of(const std::shared_ptr<PushOrigin>& origin) {
  const auto found =
      std::find_if(origins_.begin(), origins_.end(),
                   [&](const OriginRecords& known) { return known.origin == origin; });
  if (found != origins_.end()) return *found;
  std::erase_if(origins_, [](const OriginRecords& known) { return known.origin->ended(); });
  origins_.push_back({.origin = origin});
  return origins_.back();
}

PushRecords::Verdict PushRecords::ask(const std::shared_ptr<PushOrigin>& origin, const PushId& id) {
  // Asked under the shard's lock, which also guards forgetting: a push that was admitted before its
  // origin ended, or its watermark rose, cannot slip in after its record was forgotten.
  const uint64_t watermark = origin->watermark();
  if (origin->ended() || id.sequence < watermark) return Verdict::kDecided;
  OriginRecords& known = records_of(origin);
  known.forget_below(watermark);
  const auto chunk = known.find(id);
  if (known.is_chunk_of(chunk, id)) {
    return chunk->taken[id.sequence % kChunk] ? Verdict::kRepeated : Verdict::kNew;
  }
  if (chunks() >= kMostChunks) forget();
  return chunks() < kMostChunks ? Verdict::kNew : Verdict::kTooMany;
}

void PushRecords::add(const std::shared_ptr<PushOrigin>& origin, const PushId& id) {
  OriginRecords& known = records_of(origin);
  auto chunk = known.find(id);
  if (!known.is_chunk_of(chunk, id)) {
    chunk = known.chunks.insert(chunk, {id.round, id.sequence / kChunk, {}});
  }
  chunk->taken[id.sequence % kChunk] = true;
}

void PushRecords::forget() {
  for (OriginRecords& known : origins_) {
    if (known.origin->ended()) {
      known.chunks = {};
    } else {
      known.forget_below(known.origin->watermark());
    }
  }
}

size_t PushRecords::chunks() const {
  size_t count = 0;
  for (const OriginRecords& known : origins_) count += known.chunks.size();
  return count;
}

void PushRecords::OriginRecords::forget_below(uint64_t watermark) {
  if (watermark / kChunk <= forgotten_below / kChunk) return;
  forgotten_below = watermark;
  std::erase_if(chunks, [&](const Chunk& chunk) { return chunk.index < watermark / kChunk; });
}

std::vector<PushRecords::Chunk>::iterator PushRecords::OriginRecords::find(const PushId& id) {
  const std::pair<uint32_t, uint64_t> key(id.round, id.sequence / kChunk);
  return std::lower_bound(chunks.begin(), chunks.end(), key,
                          [](const Chunk& chunk, const auto& value) {
                            return std::pair(chunk.round, chunk.index) < value;
                          });
}

bool PushRecords::OriginRecords::is_chunk_of(std::vector<Chunk>::iterator chunk,
                                             const PushId& id) const {
  return chunk != chunks.end() && chunk->round == id.round && chunk->index == id.sequence / kChunk;
}

}  // namespace trireme
