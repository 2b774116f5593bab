#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/ps/job_key.h"

namespace trireme {

struct JobTableOptions {
  const Clock* clock = &Clock::real();
  // Time for which a job's variables are kept after the last lease of its members has run out, or
  // after the job ended and asked to keep them.
  Duration keep_after_lease = std::chrono::minutes(5);
};

// The jobs that one server knows: for each its generation, the members of that generation with
// their leases, and the time at which its variables may be freed. Changes no variables itself: the
// results of begin(), end(), drop() and expire() say what the caller must free. Thread-safe.
//
// A generation begins in two steps. A program first reserves its number at one server of the
// cluster, which holds the counter (join), and then begins it at every server, at that one last
// (begin). So a program that finds a generation begun at the counter finds it at every server.
class JobTable {
 public:
  // Limits on what peers can make the server remember. Beyond the limit of jobs, those without
  // members and variables are forgotten first.
  static constexpr size_t kMostJobs = 4096;
  static constexpr size_t kMostMembers = 65536;  // in one job
  // Highest generation that peers may name. Generations that count up never reach it.
  static constexpr uint64_t kHighestGeneration = uint64_t{1} << 62;
  // Largest distance from the highest generation that the server knows to one that a peer names. So
  // one bad request does not use up the generations of a job.
  static constexpr uint64_t kLargestLeap = uint64_t{1} << 20;
  // Time that a program has from join() to begin().
  static constexpr Duration kStartTime = std::chrono::seconds(10);

  explicit JobTable(JobTableOptions options = {}) : options_(options) {}

  struct Known {
    uint64_t generation = 0;  // highest generation that was reserved or begun here; 0 for none
    // Generation in which the variables that this server holds for the job began; 0 for none. It is
    // lower than `generation` after a program has continued with them.
    uint64_t since = 0;
    int members = 0;    // number of members whose lease is held
    bool ended = true;  // true if no generation is going on here
  };
  Known find(const std::string& job) const;

  struct JoinRequest {
    std::string job;
    uint64_t member = 0;    // random number of the program
    Time until;             // end of the program's lease, if it joins members
    uint64_t at_least = 0;  // highest generation that any server of the cluster knows
    // Time of the answer to the program's first request; nullopt in the first request.
    std::optional<Time> asked_at = std::nullopt;
  };
  struct Joined {
    enum class Outcome {
      kNew,        // the program has reserved a new generation
      kJoined,     // the program is a member of the current generation
      kUndecided,  // ask again soon: it is not known yet whether the members are alive
    };
    Outcome outcome = Outcome::kUndecided;
    uint64_t generation = 0;  // 0 while undecided
    bool resumed = false;     // true if the generation was begun with BeginRequest::resume
    bool began = false;       // true if the program itself has begun the generation
  };
  // Decides which generation a program takes part in. A member that holds its lease may have been
  // killed a moment ago, and its successor must not join it. So the program joins the current
  // generation only if a member has sent a renewal after the answer to the program's first request,
  // or if it is a member itself. If all leases have run out, the program reserves the next
  // generation. May be repeated.
  absl::StatusOr<Joined> join(const JoinRequest& request);

  struct BeginRequest {
    JobKey job;
    uint64_t member = 0;
    Time until;           // end of the member's lease
    bool joined = false;  // true if the generation exists, false if the program reserved it
    bool resume = false;  // true if a new generation continues with the variables
  };
  struct Begun {
    uint64_t since = 0;   // as in Known, and never 0
    bool is_new = false;  // true if the generation begins here with this call
    bool fresh = false;   // true if the caller must free the variables of earlier generations
  };
  // Makes the generation the current one, and the program a member of it. The members of lower
  // generations are dropped. Fails with ABORTED if a higher generation is known, and with
  // FAILED_PRECONDITION if the program joined a generation that this server does not have. May be
  // repeated.
  absl::StatusOr<Begun> begin(const BeginRequest& request);

  // Extends a member's lease, and never shortens it. The member was alive at `sent`, when it sent
  // the renewal. Fails with ABORTED, naming the reason, if the member's generation is not the
  // current one, or if the member is not known here any more.
  absl::Status renew(const JobKey& job, uint64_t member, Time until, Time sent);
  // Returns OK if the generation is the current one, and fails like renew() otherwise.
  absl::Status check(const JobKey& job) const;

  struct EndRequest {
    JobKey job;
    uint64_t member = 0;
    bool keep = false;  // true if the variables must not be freed at once
    // True if the job ends with this member, as the counter said; nullopt in the request to the
    // counter itself.
    std::optional<bool> last = std::nullopt;
  };
  struct Ended {
    bool last = false;   // true if the job ends with this member
    bool frees = false;  // true if the caller must free the variables
  };
  // Removes a member, or its reservation. Has no effect if it has neither.
  Ended end(const EndRequest& request);

  // Ends a job and drops its members. Returns false if there is no such job. The caller must free
  // the job's variables.
  bool drop(const std::string& job);

  // Drops members whose lease ran out long ago. Returns the jobs whose variables the caller must
  // free.
  std::vector<std::string> expire();

  struct Listed {
    std::string job;
    Known known;
    // Time until the variables are freed unless a program of the job comes; nullopt while a lease
    // is held, or if there are no variables.
    std::optional<Duration> freed_in;
  };
  // Returns all jobs that have members or variables here, sorted by id.
  std::vector<Listed> list() const;

 private:
  // A generation that was reserved and has not begun yet.
  struct Reservation {
    uint64_t generation = 0;
    uint64_t member = 0;
    Time until;
  };
  struct Job {
    uint64_t highest = 0;     // highest generation that was reserved or begun
    uint64_t generation = 0;  // generation that began last; 0 for none
    uint64_t since = 0;       // as in Known
    uint64_t founder = 0;     // member that began the generation
    Time alive_at = {};       // time of the last renewal, when the member sent it
    bool ended = true;        // true if the generation has ended
    bool resumed = false;     // true if the generation was begun with BeginRequest::resume
    bool keep = false;        // true if a member that has left asked to keep the variables
    Time used;                // time of the last change
    std::optional<Reservation> reserved;
    std::map<uint64_t, Time> members;  // end of the lease by member
  };

  static Known known(const Job& job, Time now);
  // Returns the time at which the last lease ran out, or runs out. If there are no members, it is
  // the time at which the last one left.
  static Time idle_since(const Job& job);
  // Returns the error of check() for a job in this state.
  static absl::Status check(const Job* job, const JobKey& key);
  const Job* lookup(const std::string& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns INVALID_ARGUMENT if a peer may not name this generation.
  absl::Status check_generation(const std::string& job, uint64_t generation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds a member, or extends its lease. Fails with RESOURCE_EXHAUSTED beyond kMostMembers.
  static absl::Status add_member(Job& job, uint64_t member, Time until);
  // Makes room for one more job. Fails with RESOURCE_EXHAUSTED if all jobs are in use.
  absl::Status make_room() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobTableOptions options_;
  mutable Mutex mutex_;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme
