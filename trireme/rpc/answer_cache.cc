#include "trireme/rpc/answer_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"

// The life of an entry: begin() creates it, repetitions that come before the answer add waiters,
// finish() stores the answer and calls them, and drop_old() removes the entry when its answer is
// the oldest and a limit is exceeded. A request in flight is in no queue and is never dropped.
//
// No request is executed twice, because the cache never forgets that a request was executed: it has
// either its entry, or a `dropped` id that is at least as high. A whole caller is forgotten only
// when no repetition of its requests can still be on the way. A restarted server remembers nothing,
// but it has another incarnation and rejects calls for the former one
// (IncomingCall::check_prefix).
namespace trireme::internal {
namespace {

uint64_t size_of(const absl::StatusOr<Message>& answer) {
  if (!answer.ok()) return answer.status().message().size();
  uint64_t bytes = answer->body.size();
  for (const at::Tensor& tensor : answer->tensors) {
    if (tensor.defined()) bytes += tensor.nbytes();
  }
  return bytes;
}

std::string name_of(const std::string& peer) {
  return peer.empty() ? "a peer without a certificate" : peer;
}

}  // namespace

absl::StatusOr<AnswerCache::Found> AnswerCache::begin(uint64_t caller, uint64_t request_id,
                                                      const std::string& peer, Waiter waiter) {
  std::shared_ptr<const Answer> answer;
  {
    MutexLock lock(mutex_);
    const Time now = clock_.now();
    drop_old(now);
    auto found = callers_.find(caller);
    if (found == callers_.end()) {
      if (callers_.size() >= limits_.callers) forget_idle_callers(now);
      if (callers_.size() >= limits_.callers) {
        return make_status(ErrorCode::kResourceExhausted,
                           absl::StrCat("the server remembers the requests of ", callers_.size(),
                                        " callers, its limit; try again later"));
      }
      found = callers_.emplace(caller, Caller{.peer = peer}).first;
    }
    Caller& known = found->second;
    if (known.peer != peer) {
      return make_status(ErrorCode::kPermissionDenied,
                         absl::StrCat("rejected a request: request ", request_id, " of caller ",
                                      format_incarnation(caller), ", which is ",
                                      name_of(known.peer), ", was sent by ", name_of(peer)));
    }
    known.used = now;
    const auto entry = known.entries.find(request_id);
    if (entry == known.entries.end()) {
      if (request_id <= known.dropped) {
        return make_status(
            ErrorCode::kAborted,
            absl::StrCat("rejected request ", request_id, " of caller ", format_incarnation(caller),
                         ": it is so old that the server no longer knows whether it was executed"));
      }
      known.entries.emplace(request_id, Entry{});
      return Found::kNew;
    }
    answer = entry->second.answer;
    if (!answer) entry->second.waiters.push_back(std::move(waiter));
  }
  if (answer) waiter(*answer);
  return Found::kRepetition;
}

void AnswerCache::finish(uint64_t caller, uint64_t request_id, const Answer& answer) {
  std::vector<Waiter> waiters;
  const bool undone = absl::IsCancelled(answer.status());
  {
    MutexLock lock(mutex_);
    const Time now = clock_.now();
    Caller& known = callers_.at(caller);
    known.used = now;
    const auto entry = known.entries.find(request_id);
    waiters.swap(entry->second.waiters);
    if (undone) {
      known.entries.erase(entry);
    } else {
      const uint64_t bytes = size_of(answer);
      entry->second.answer = std::make_shared<const Answer>(answer);
      kept_.push_back({caller, request_id, bytes, now});
      kept_bytes_ += bytes;
      drop_old(now);
    }
  }
  for (const Waiter& waiter : waiters) {
    waiter(undone ? Answer(make_status(ErrorCode::kUnavailable,
                                       "the first attempt was cancelled; try again"))
                  : answer);
  }
}

size_t AnswerCache::answers() const {
  MutexLock lock(mutex_);
  return kept_.size();
}

void AnswerCache::drop_old(Time now) {
  while (!kept_.empty() && (kept_.size() > limits_.answers || kept_bytes_ > limits_.bytes ||
                            now - kept_.front().since > limits_.age)) {
    const Kept& oldest = kept_.front();
    Caller& caller = callers_.at(oldest.caller);
    caller.entries.erase(oldest.request_id);
    caller.dropped = std::max(caller.dropped, oldest.request_id);
    kept_bytes_ -= oldest.bytes;
    kept_.pop_front();
  }
}

// Answers are kept for longer than any caller retries (AnswerLimits::age). So no repetition of a
// request of these callers can be on the way.
void AnswerCache::forget_idle_callers(Time now) {
  for (auto it = callers_.begin(); it != callers_.end();) {
    const Caller& caller = it->second;
    const auto next = std::next(it);
    if (caller.entries.empty() && now - caller.used > limits_.age) callers_.erase(it);
    it = next;
  }
}

}  // namespace trireme::internal
