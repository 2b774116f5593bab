#include "trireme/ps/job_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

// The life of a job at one server:
//
//             join                 begin                    leases run out, or end() with keep
//   unknown --------> reserved ------------> going on ------------------------------------> idle
//                        ^                      |  ^                                          |
//                        |                      |  |             begin (next generation)      |
//                        |        end, drop     |  +------------------------------------------+
//                        +------- ended <-------+                                             |
//                                   ^                      keep_after_lease                   |
//                                   +---------------------------------------------------------+
//
// Reservations are made only at the server that holds the counter; elsewhere a job goes from
// unknown or ended straight to going on. An ended job has no variables. It is remembered for its
// number alone: the next generation must be higher, since messages of the last one may still be
// under way.
//
// A lease that has run out fences the writers of its member, but the member is not dropped: if no
// other program has taken over, a member that was cut off for a minute goes on. It is dropped
// together with the variables.
namespace trireme {

JobTable::Known JobTable::known(const Job& job, Time now) {
  return {.generation = job.highest,
          .since = job.since,
          .members = static_cast<int>(std::ranges::count_if(
              job.members, [&](const auto& member) { return member.second > now; })),
          .ended = job.ended};
}

Time JobTable::idle_since(const Job& job) {
  Time since = job.used;
  for (const auto& [member, until] : job.members) since = std::max(since, until);
  return since;
}

const JobTable::Job* JobTable::lookup(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

absl::Status JobTable::check(const Job* job, const JobKey& key) {
  if (job != nullptr && job->highest > key.generation && job->generation != key.generation) {
    return replaced_generation(key, job->highest);
  }
  if (job != nullptr && job->generation == key.generation && !job->ended) return absl::OkStatus();
  return make_status(
      ErrorCode::kAborted,
      absl::StrCat("generation ", key.generation, " of job '", key.id,
                   "' has ended on this server: all its programs have left or were silent for "
                   "minutes, or it was dropped by `trireme jobs drop`; start the program again"));
}

absl::Status JobTable::check_generation(const std::string& id, uint64_t generation) const {
  const Job* known = lookup(id);
  // A server that does not know the job may have been restarted, and takes any number.
  const uint64_t highest = known == nullptr ? 0 : known->highest;
  if (generation <= kHighestGeneration && (highest == 0 || generation <= highest + kLargestLeap)) {
    return absl::OkStatus();
  }
  return invalid_argument(absl::StrCat("generation ", generation, " of job '", id,
                                       "' is too high: this server knows generation ", highest,
                                       " of it; give the program another job id"));
}

absl::Status JobTable::add_member(Job& job, uint64_t member, Time until) {
  const auto found = job.members.find(member);
  if (found != job.members.end()) {
    found->second = std::max(found->second, until);
    return absl::OkStatus();
  }
  if (job.members.size() >= kMostMembers) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("the job has ", job.members.size(),
                                    " members, the limit; end programs that are done"));
  }
  job.members[member] = until;
  return absl::OkStatus();
}

absl::Status JobTable::make_room() {
  if (jobs_.size() < kMostJobs) return absl::OkStatus();
  auto oldest = jobs_.end();
  const Time now = options_.clock->now();
  for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
    const auto& reserved = job->second.reserved;
    if (!job->second.ended || job->second.since != 0 || (reserved && reserved->until > now)) {
      continue;
    }
    if (oldest == jobs_.end() || job->second.used < oldest->second.used) oldest = job;
  }
  if (oldest == jobs_.end()) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("the server has ", jobs_.size(),
                                    " jobs, its limit; drop some with `trireme jobs drop`"));
  }
  jobs_.erase(oldest);
  return absl::OkStatus();
}

JobTable::Known JobTable::find(const std::string& job) const {
  MutexLock lock(mutex_);
  const Job* found = lookup(job);
  return found == nullptr ? Known() : known(*found, options_.clock->now());
}

absl::StatusOr<JobTable::Joined> JobTable::join(const JoinRequest& request) {
  using Outcome = Joined::Outcome;
  TRIREME_RETURN_IF_ERROR(check_job_id(request.job));
  if (request.member == 0) return invalid_argument("malformed request: the member is 0");
  MutexLock lock(mutex_);
  const Time now = options_.clock->now();
  TRIREME_RETURN_IF_ERROR(check_generation(request.job, request.at_least));
  if (!jobs_.contains(request.job)) TRIREME_RETURN_IF_ERROR(make_room());
  Job& job = jobs_[request.job];
  if (job.reserved && job.reserved->until > now) {
    if (job.reserved->member != request.member) return Joined{};
    return Joined{.outcome = Outcome::kNew, .generation = job.reserved->generation};  // repeated
  }
  if (!job.ended && known(job, now).members > 0) {
    const bool is_alive = request.asked_at && job.alive_at > *request.asked_at;
    if (!is_alive && !job.members.contains(request.member)) return Joined{};
    TRIREME_RETURN_IF_ERROR(add_member(job, request.member, request.until));
    return Joined{Outcome::kJoined, job.generation, job.resumed, job.founder == request.member};
  }
  const uint64_t highest = std::max(job.highest, request.at_least);
  if (highest >= kHighestGeneration) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("the generations of job '", request.job,
                                    "' are used up; give the program another job id"));
  }
  job.highest = highest + 1;
  job.reserved = {job.highest, request.member, now + kStartTime};
  job.used = now;
  return Joined{.outcome = Outcome::kNew, .generation = job.highest};
}

absl::StatusOr<JobTable::Begun> JobTable::begin(const BeginRequest& request) {
  const JobKey& key = request.job;
  TRIREME_RETURN_IF_ERROR(check_job_id(key.id));
  if (key.generation == 0 || request.member == 0) {
    return invalid_argument("malformed request: the member or the generation is 0");
  }
  MutexLock lock(mutex_);
  const Time now = options_.clock->now();
  TRIREME_RETURN_IF_ERROR(check_generation(key.id, key.generation));
  if (!jobs_.contains(key.id)) TRIREME_RETURN_IF_ERROR(make_room());
  Job& job = jobs_[key.id];
  const bool is_going_on = job.generation == key.generation && !job.ended;
  // A higher number that was reserved, but never begun, does not end a generation that goes on.
  if (!is_going_on && key.generation < job.highest) {
    return replaced_generation(key, job.highest);
  }
  if (!is_going_on && (request.joined || job.generation == key.generation)) {
    return make_status(
        ErrorCode::kFailedPrecondition,
        absl::StrCat("this server does not have generation ", key.generation, " of job '", key.id,
                     "', which other servers of the cluster have: it was restarted, "
                     "or the job ended meanwhile; end all programs of the job and "
                     "start them again"));
  }
  Begun begun;
  if (!is_going_on) {
    begun.is_new = true;
    begun.fresh = !request.resume;
    job.resumed = request.resume;
    job.highest = job.generation = key.generation;
    if (begun.fresh || job.since == 0) job.since = key.generation;
    job.ended = job.keep = false;
    job.members.clear();
    job.founder = request.member;
    job.alive_at = {};
    job.reserved.reset();
  }
  job.used = now;
  begun.since = job.since;
  TRIREME_RETURN_IF_ERROR(add_member(job, request.member, request.until));
  return begun;
}

absl::Status JobTable::renew(const JobKey& key, uint64_t member, Time until, Time sent) {
  MutexLock lock(mutex_);
  TRIREME_RETURN_IF_ERROR(check(lookup(key.id), key));
  Job& job = jobs_.find(key.id)->second;
  const auto found = job.members.find(member);
  if (found == job.members.end()) {
    return make_status(ErrorCode::kAborted,
                       absl::StrCat("the program is no longer a member of job '", key.id,
                                    "' on this server: it was silent for minutes; start it again"));
  }
  found->second = std::max(found->second, until);
  // The member may have been killed while the renewal was under way.
  job.alive_at = std::max(job.alive_at, std::min(sent, options_.clock->now()));
  return absl::OkStatus();
}

absl::Status JobTable::check(const JobKey& job) const {
  MutexLock lock(mutex_);
  return check(lookup(job.id), job);
}

JobTable::Ended JobTable::end(const EndRequest& request) {
  MutexLock lock(mutex_);
  const auto found = jobs_.find(request.job.id);
  if (found == jobs_.end()) return {};
  Job& job = found->second;
  if (job.reserved && job.reserved->member == request.member) job.reserved.reset();
  if (!check(&job, request.job).ok() || job.members.erase(request.member) == 0) return {};
  job.used = options_.clock->now();
  job.keep |= request.keep;
  Ended ended;
  // A member whose lease has run out may be cut off and come back, so the job does not end here.
  ended.last = job.members.empty() && request.last.value_or(true);
  if (!ended.last) return ended;
  job.ended = true;
  ended.frees = !job.keep;
  if (ended.frees) job.since = 0;
  return ended;
}

bool JobTable::drop(const std::string& job) {
  MutexLock lock(mutex_);
  const auto found = jobs_.find(job);
  // A job that has ended in order leaves only its number.
  if (found == jobs_.end() || (found->second.ended && found->second.since == 0)) return false;
  found->second.ended = true;
  found->second.since = 0;
  found->second.members.clear();
  found->second.reserved.reset();
  found->second.used = options_.clock->now();
  return true;
}

std::vector<std::string> JobTable::expire() {
  std::vector<std::string> freed;
  MutexLock lock(mutex_);
  const Time now = options_.clock->now();
  for (auto& [id, job] : jobs_) {
    if (job.since != 0 && idle_since(job) + options_.keep_after_lease <= now) {
      freed.push_back(id);
      job.since = 0;
      job.ended = true;
    }
    std::erase_if(job.members, [&](const auto& member) {
      return member.second + options_.keep_after_lease <= now;
    });
  }
  return freed;
}

std::vector<JobTable::Listed> JobTable::list() const {
  std::vector<Listed> listed;
  MutexLock lock(mutex_);
  const Time now = options_.clock->now();
  for (const auto& [id, job] : jobs_) {
    if (job.ended && job.since == 0) continue;
    Listed& entry = listed.emplace_back(Listed{id, known(job, now), std::nullopt});
    if (entry.known.members > 0 || job.since == 0) continue;
    entry.freed_in = std::max(Duration::zero(), idle_since(job) + options_.keep_after_lease - now);
  }
  return listed;
}

}  // namespace trireme
