#include "trireme/ps/push_records.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"

// How a push is applied once per shard. Its identity is (writer, sequence, round); retries, and
// other workers that run the same closure again, send it with the same identity.
//
//   1. The server admits the push (Writers::admit): its writer must be registered and hold its
//      lease, and the sequence must not be below the watermark, which the push may raise.
//   2. Each shard, under its own lock, classifies the push. A new one is applied and recorded, a
//      repeated one is acknowledged without effect.
//   3. When all pushes of a sequence were acknowledged, or the client has given up on them, the
//      client raises its watermark. Servers then drop the records, and a copy that arrives late is
//      rejected in step 1 or 2 instead of being applied a second time.
//
// The conditions of step 1 are checked again in step 2, because the watermark can rise, the lease
// can run out and the writer can end between the two steps. Only the second check is made under the
// lock that also guards the dropping of records.
//
// Fences. A client that must know that no older update will be applied raises the watermark at each
// server (fence.h). It cannot reach a server that is frozen or cut off. There it waits until the
// writer's lease has run out, after which the server rejects all pushes of the writer. When the
// client reaches the server again, it renews the lease and raises the watermark in one step, the
// watermark first. Readers therefore check the lease first: a push that finds the new lease finds
// the new watermark too.
namespace trireme {
namespace {

// Returns the ABORTED error for `what`, which was sent on behalf of the writer.
absl::Status rejected(const std::string& what, uint64_t writer, const std::string& why) {
  return make_status(
      ErrorCode::kAborted,
      absl::StrCat(what, " of writer ", format_incarnation(writer), " is rejected: ", why));
}

std::string name_of(const PushId& id) {
  return absl::StrCat("push ", id.sequence, ".", id.round);
}

}  // namespace

void Writer::raise_watermark(uint64_t watermark) {
  uint64_t known = watermark_.load(std::memory_order_relaxed);
  while (known < watermark &&
         !watermark_.compare_exchange_weak(known, watermark, std::memory_order_acq_rel)) {
  }
}

void Writer::renew(Time lease_end, uint64_t fenced_below) {
  raise_watermark(fenced_below);
  Time known = lease_end_.load(std::memory_order_relaxed);
  while (known < lease_end &&
         !lease_end_.compare_exchange_weak(known, lease_end, std::memory_order_acq_rel)) {
  }
}

void Writer::end(const std::string& why) {
  {
    MutexLock lock(mutex_);
    if (why_.empty()) why_ = why;
  }
  ended_.store(true, std::memory_order_release);
}

bool Writer::is_over() const {
  if (ended()) return true;
  const Time lease_end = this->lease_end();
  return lease_end != Time::max() && clock_.now() >= lease_end;
}

bool Writer::rejects(const PushId& id) const {
  return is_over() || id.sequence < watermark();  // in this order, see above
}

std::string Writer::reason() const {
  if (ended()) {
    MutexLock lock(mutex_);
    return why_;
  }
  // The lease may have been renewed since the push was rejected.
  const Duration late = std::max<Duration>(clock_.now() - lease_end(), Duration::zero());
  return absl::StrCat("the lease of its client program ran out ", format_duration(late),
                      " ago; the program has ended, is stopped, or cannot reach this server");
}

absl::Status Writer::rejection(const PushId& id) const {
  const bool decided = id.sequence < watermark() && !is_over();
  return rejected(name_of(id), id.writer,
                  decided ? "it is already decided, since its writer has raised its watermark or "
                            "its fence past it"
                          : reason());
}

absl::Status Writers::begin(uint64_t writer, WriterOwner owner, Time lease_end) {
  if (writer == 0) {
    return make_status(ErrorCode::kInvalidArgument,
                       "0 is not a valid writer; use an id such as the program's incarnation");
  }
  MutexLock lock(mutex_);
  if (const auto found = writers_.find(writer); found != writers_.end()) {
    found->second->renew(lease_end, 0);
    return absl::OkStatus();
  }
  // A request to begin may be a copy that arrives after the writer has ended.
  for (const auto& [ended, why] : ended_) {
    if (ended == writer) return rejected("the registration", writer, why);
  }
  if (writers_.size() >= kMostWriters) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("the server has ", writers_.size(),
                                    " writers, its limit; end those that are done"));
  }
  writers_.emplace(writer, std::make_shared<Writer>(std::move(owner), lease_end, clock_));
  return absl::OkStatus();
}

std::shared_ptr<Writer> Writers::find(uint64_t writer) const {
  MutexLock lock(mutex_);
  const auto found = writers_.find(writer);
  return found == writers_.end() ? nullptr : found->second;
}

void Writers::renew(uint64_t writer, Time lease_end, uint64_t fenced_below) {
  if (const auto found = find(writer)) found->renew(lease_end, fenced_below);
}

void Writers::raise_watermark(uint64_t writer, uint64_t watermark) {
  if (const auto found = find(writer)) found->raise_watermark(watermark);
}

bool Writers::end(uint64_t writer, const std::string& why) {
  MutexLock lock(mutex_);
  const auto found = writers_.find(writer);
  if (found == writers_.end()) return false;
  found->second->end(why);
  writers_.erase(found);
  remember(writer, why);
  return true;
}

size_t Writers::end_generations(const std::string& job, uint64_t generation,
                                const std::string& why) {
  MutexLock lock(mutex_);
  return end_if(
      [&](const Writer& known) {
        return known.owner().job == job && known.owner().generation < generation;
      },
      why);
}

size_t Writers::end_member(const WriterOwner& owner, const std::string& why) {
  MutexLock lock(mutex_);
  return end_if([&](const Writer& known) { return known.owner() == owner; }, why);
}

size_t Writers::end_lapsed(Duration kept) {
  MutexLock lock(mutex_);
  const Time dropped = clock_.now() - kept;
  return end_if([dropped](const Writer& known) { return known.lease_end() <= dropped; },
                "the lease of its client program ran out long ago; start the program again");
}

size_t Writers::end_if(const Matches& matches, const std::string& why) {
  std::vector<uint64_t> ended;
  for (const auto& [id, writer] : writers_) {
    if (!matches(*writer)) continue;
    writer->end(why);
    ended.push_back(id);
  }
  for (const uint64_t writer : ended) {
    writers_.erase(writer);
    remember(writer, why);
  }
  return ended.size();
}

void Writers::remember(uint64_t writer, const std::string& why) {
  ended_.emplace_back(writer, why);
  if (ended_.size() > kMostReasons) ended_.pop_front();
}

std::string Writers::why_unknown(uint64_t writer) const {
  const auto found = std::find_if(ended_.begin(), ended_.end(),
                                  [writer](const auto& ended) { return ended.first == writer; });
  if (found != ended_.end()) return found->second;
  return "its writer is not registered here; it has ended, or its lease ran out long ago";
}

absl::StatusOr<std::shared_ptr<Writer>> Writers::admit(const PushId& id, uint64_t watermark) {
  std::shared_ptr<Writer> writer;
  {
    MutexLock lock(mutex_);
    const auto found = writers_.find(id.writer);
    if (found == writers_.end()) return rejected(name_of(id), id.writer, why_unknown(id.writer));
    writer = found->second;
  }
  writer->raise_watermark(watermark);
  if (writer->rejects(id)) return writer->rejection(id);
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
  // record was dropped. The watermark is read once: records are dropped below the same one that the
  // push was compared with.
  if (writer->is_over()) return Verdict::kDecided;  // before the watermark is read, see above
  const uint64_t watermark = writer->watermark();
  if (id.sequence < watermark) return Verdict::kDecided;
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
  std::erase_if(writers_, [](const WriterRecords& known) { return known.writer->ended(); });
  for (WriterRecords& known : writers_) known.forget_below(known.writer->watermark());
}

bool PushRecords::can_forget() const {
  return std::any_of(writers_.begin(), writers_.end(), [](const WriterRecords& known) {
    return known.writer->ended() ||
           (!known.chunks.empty() && known.is_behind(known.writer->watermark()));
  });
}

size_t PushRecords::chunks() const {
  size_t count = 0;
  for (const WriterRecords& known : writers_) count += known.chunks.size();
  return count;
}

// Called for every push, so it returns quickly unless the watermark has entered a new chunk.
void PushRecords::WriterRecords::forget_below(uint64_t watermark) {
  if (!is_behind(watermark)) return;
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
