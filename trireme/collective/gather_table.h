#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {

// The bytes that one rank gives to a round.
struct GatherEntry {
  int rank = 0;
  int size = 1;         // number of ranks of the round
  uint64_t ticket = 0;  // identity of the attempt; the same when the rank asks again
  std::string bytes;
  Duration wait = std::chrono::seconds(2);  // time until the answer, if ranks are missing
};

// The state of a round after a rank has asked.
struct GatherAnswer {
  std::vector<int> missing;           // ranks that have not come; the rest is set if it is empty
  uint64_t id = 0;                    // random number of the round
  std::vector<std::string> gathered;  // bytes of all ranks
};

// Collects bytes of all ranks, by key, at rank 0. A rank that asks before all have come gets the
// list of missing ranks after 2 s at most, and asks again. A rank that asks with another ticket was
// restarted, or has begun anew: it replaces its former entry, and after the round was complete it
// begins the next round under that key. Thread-safe. Must be held by a shared_ptr.
class GatherTable : public std::enable_shared_from_this<GatherTable> {
 public:
  using Done = std::function<void(absl::StatusOr<GatherAnswer>)>;

  // Adds the bytes of a rank. Calls `done` once, possibly before it returns.
  void enter(const std::string& key, GatherEntry entry, Done done);
  // Removes the entry of a rank that no longer waits, unless its round is complete. The rank gets
  // the list of missing ranks.
  void withdraw(const std::string& key, int rank, uint64_t ticket);
  // Ends all waits, now and later, with this error.
  void close(const absl::Status& cause);

 private:
  struct Waiting {
    GatherEntry entry;
    Done done;      // null while the rank is about to ask again
    uint64_t turn;  // number of the question; a timer that finds another one does nothing
    Time asked;     // time of the last question or answer
  };
  struct Round {
    std::map<int, Waiting> waiting;        // the round that collects, by rank
    std::map<int, uint64_t> last_tickets;  // tickets of the last complete round, by rank
    GatherAnswer last;
  };
  // Answers to give after the lock is released.
  using Answers = std::vector<std::function<void()>>;

  void enter_locked(const std::string& key, GatherEntry entry, Done done, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status check(const GatherEntry& entry, const Round* round) const;
  // Removes the entries of ranks that have not asked again.
  void prune(Round& round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void remove(Round& round, std::map<int, Waiting>::iterator entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Completes the round if all ranks have come.
  void complete(Round& round, Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::vector<int> missing(const Round& round, const GatherEntry& entry);
  // Tells a rank which ranks are missing, unless it was answered.
  void on_time(const std::string& key, int rank, uint64_t turn);

  Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // OK while it is open
  uint64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Round> rounds_ ABSL_GUARDED_BY(mutex_);
  size_t held_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of all entries and answers of the rounds
};

}  // namespace trireme::internal
