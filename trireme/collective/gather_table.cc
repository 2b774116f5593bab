#include "trireme/collective/gather_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/rpc/timer.h"

// A rank that has been told which ranks are missing asks again at once. Its entry stays in the
// meantime, but for a short time only: a rank that gave up or was killed must not complete a round
// without being there.
namespace trireme::internal {
namespace {

using std::chrono::seconds;

constexpr Duration kAnswerAfter = seconds(2);
// Time in which a rank that was told about missing ranks must ask again.
constexpr auto kAsksAgainWithin = seconds(3);
// Limits of what a peer can make the table hold.
constexpr int kMostRanks = 1 << 16;
constexpr size_t kMostRounds = 4096;
constexpr size_t kMostGatherBytes = 1 << 20;  // of one rank
constexpr size_t kMostHeldBytes = 256 << 20;  // of all ranks in all rounds

size_t bytes_of(const GatherAnswer& answer) {
  size_t bytes = 0;
  for (const std::string& each : answer.gathered) bytes += each.size();
  return bytes;
}

}  // namespace

absl::Status GatherTable::check(const GatherEntry& entry, const Round* round) const {
  if (entry.size < 1 || entry.size > kMostRanks || entry.rank < 0 || entry.rank >= entry.size) {
    return invalid_argument(absl::StrCat("rank ", entry.rank, " of ", entry.size,
                                         " is not valid; a group has up to ", kMostRanks,
                                         " ranks, which are numbered from 0"));
  }
  if (entry.bytes.size() > kMostGatherBytes) {
    return invalid_argument(absl::StrCat("rank ", entry.rank, " exchanges ", entry.bytes.size(),
                                         " bytes; at most ", kMostGatherBytes, " are allowed"));
  }
  for (const auto& [rank, other] : round == nullptr ? std::map<int, Waiting>() : round->waiting) {
    if (other.entry.size == entry.size || rank == entry.rank) continue;
    return invalid_argument(absl::StrCat("rank ", entry.rank, " expects ", entry.size,
                                         " ranks, but rank ", rank, " expects ", other.entry.size,
                                         "; all must be started with the same list of tasks"));
  }
  return absl::OkStatus();
}

void GatherTable::enter(const std::string& key, GatherEntry entry, Done done) {
  Answers answers;
  {
    MutexLock lock(mutex_);
    enter_locked(key, std::move(entry), std::move(done), answers);
  }
  for (const auto& answer : answers) answer();
}

void GatherTable::enter_locked(const std::string& key, GatherEntry entry, Done done,
                               Answers& answers) {
  if (rounds_.size() >= kMostRounds) {
    for (auto& [other, round] : rounds_) prune(round);
    std::erase_if(rounds_, [](const auto& each) {
      return each.second.waiting.empty() && each.second.last_tickets.empty();
    });
  }
  const auto found = rounds_.find(key);
  Round* round = found == rounds_.end() ? nullptr : &found->second;
  if (round != nullptr) prune(*round);
  absl::Status error = closed_.ok() ? check(entry, round) : closed_;
  if (error.ok() && round == nullptr && rounds_.size() >= kMostRounds) {
    error = make_status(ErrorCode::kResourceExhausted, "too many groups are being formed");
  }
  if (error.ok() && held_ + entry.bytes.size() > kMostHeldBytes) {
    error = make_status(ErrorCode::kResourceExhausted,
                        absl::StrCat("rank ", entry.rank, " exchanges ", entry.bytes.size(),
                                     " bytes, but all ranks exchange ", held_, " already, of ",
                                     kMostHeldBytes, " that are allowed"));
  }
  if (!error.ok()) {
    return answers.push_back([done = std::move(done), error] { done(error); });
  }
  if (round == nullptr) round = &rounds_[key];
  const int rank = entry.rank;
  const auto ticket = round->last_tickets.find(rank);
  if (ticket != round->last_tickets.end() && ticket->second == entry.ticket) {
    return answers.push_back([done = std::move(done), last = round->last] { done(last); });
  }
  Waiting& waiting = round->waiting[rank];
  held_ += entry.bytes.size() - waiting.entry.bytes.size();
  if (waiting.done) {
    answers.push_back([old = std::move(waiting.done), rank] {
      old(make_status(ErrorCode::kAborted, absl::StrCat("rank ", rank, " has asked again")));
    });
  }
  const Time now = Clock::real().now();
  const Duration wait = std::clamp(entry.wait, Duration::zero(), kAnswerAfter);
  waiting = {std::move(entry), std::move(done), ++turns_, now};
  complete(*round, answers);
  if (round->waiting.empty()) return;
  run_at(now + wait, [weak = weak_from_this(), key, rank, turn = turns_] {
    if (const auto self = weak.lock()) self->on_time(key, rank, turn);
  });
}

void GatherTable::prune(Round& round) {
  const Time oldest = Clock::real().now() - kAsksAgainWithin;
  size_t freed = 0;
  std::erase_if(round.waiting, [&](const auto& each) {
    const bool is_gone = !each.second.done && each.second.asked < oldest;
    if (is_gone) freed += each.second.entry.bytes.size();
    return is_gone;
  });
  held_ -= freed;
}

void GatherTable::complete(Round& round, Answers& answers) {
  if (static_cast<int>(round.waiting.size()) < round.waiting.begin()->second.entry.size) return;
  held_ -= bytes_of(round.last);
  round.last = {.id = new_incarnation()};
  round.last_tickets.clear();
  for (auto& [rank, waiting] : round.waiting) {
    round.last.gathered.push_back(std::move(waiting.entry.bytes));
    round.last_tickets[rank] = waiting.entry.ticket;
  }
  for (auto& [rank, waiting] : round.waiting) {
    if (!waiting.done) continue;
    answers.push_back([done = std::move(waiting.done), last = round.last] { done(last); });
  }
  round.waiting.clear();
}

void GatherTable::remove(Round& round, std::map<int, Waiting>::iterator entry) {
  held_ -= entry->second.entry.bytes.size();
  round.waiting.erase(entry);
}

std::vector<int> GatherTable::missing(const Round& round, const GatherEntry& entry) {
  std::vector<int> ranks;
  for (int rank = 0; rank < entry.size; ++rank) {
    if (rank != entry.rank && !round.waiting.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void GatherTable::on_time(const std::string& key, int rank, uint64_t turn) {
  Done done;
  GatherAnswer answer;
  {
    MutexLock lock(mutex_);
    const auto round = rounds_.find(key);
    if (round == rounds_.end()) return;
    const auto found = round->second.waiting.find(rank);
    if (found == round->second.waiting.end() || found->second.turn != turn) return;
    done = std::exchange(found->second.done, nullptr);
    found->second.asked = Clock::real().now();
    prune(round->second);
    answer.missing = missing(round->second, found->second.entry);
    // A rank that waits for less than it may has reached its deadline and does not ask again.
    if (found->second.entry.wait < kAnswerAfter) remove(round->second, found);
  }
  if (done) done(std::move(answer));
}

void GatherTable::withdraw(const std::string& key, int rank, uint64_t ticket) {
  Done done;
  GatherAnswer answer;
  {
    MutexLock lock(mutex_);
    const auto round = rounds_.find(key);
    if (round == rounds_.end()) return;
    const auto found = round->second.waiting.find(rank);
    if (found == round->second.waiting.end() || found->second.entry.ticket != ticket) return;
    done = std::move(found->second.done);
    answer.missing = missing(round->second, found->second.entry);
    remove(round->second, found);
    if (round->second.waiting.empty() && round->second.last_tickets.empty()) rounds_.erase(round);
  }
  if (done) done(std::move(answer));
}

void GatherTable::close(const absl::Status& cause) {
  std::map<std::string, Round> ended;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    closed_ = cause;
    ended.swap(rounds_);
    held_ = 0;
  }
  for (auto& [key, round] : ended) {
    for (auto& [rank, waiting] : round.waiting) {
      if (waiting.done) waiting.done(cause);
    }
  }
}

}  // namespace trireme::internal
