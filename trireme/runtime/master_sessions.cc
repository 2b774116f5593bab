#include "trireme/runtime/master_sessions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/runtime/worker.h"

// A session lives as long as its lease: each OpenSession of the client, each step and each new
// graph extends it. review() finds the sessions whose lease has run out. It also says when a
// session must be renewed at the tasks: each quarter of the lease, so that a few lost renewals do
// not end it there.
//
// A RunStep may arrive after the CancelStep that is meant for it: they are handled on different
// threads, and the RunStep may be a repetition. So the tokens that were cancelled last are
// remembered, and a step with one of them does not start.
//
// No call is made under the lock. The tasks that hold something of a session that ends are returned
// to the master, which makes the calls. The parts of evicted graphs are released by
// MasterRegistrations.
namespace trireme::internal {
namespace {

// Maximum number of cancelled tokens that a session remembers.
constexpr size_t kMostCancelled = 256;
// Maximum number of closed sessions that are remembered.
constexpr size_t kMostClosed = 256;

absl::Status check_settings(uint64_t session, const SessionSettings& settings) {
  if (session != 0 && settings.lease >= std::chrono::seconds(1) &&
      settings.lease <= std::chrono::hours(24)) {
    return absl::OkStatus();
  }
  return make_status(
      ErrorCode::kInvalidArgument,
      absl::StrCat("cannot open session ", format_incarnation(session), " with a lease of ",
                   format_duration(settings.lease),
                   ": the id must not be 0 and the lease must be between one second and one day"));
}

absl::Status unknown_session(uint64_t session) {
  return make_status(
      ErrorCode::kNotFound,
      absl::StrCat("session ", format_incarnation(session),
                   " is not open on this server: it was closed, or its lease ran out"));
}

}  // namespace

absl::Status MasterSessions::open(uint64_t session, const SessionSettings& settings) {
  TRIREME_RETURN_IF_ERROR(check_settings(session, settings));
  MutexLock lock(mutex_);
  if (stopped_) return make_status(ErrorCode::kUnavailable, "the server is stopping");
  TRIREME_RETURN_IF_ERROR(check_not_closed(session));
  Session& opened = sessions_[session];
  // Graphs may already use the part of an earlier request.
  const std::shared_ptr<SessionJob> member = opened.settings.member;
  opened.settings = settings;
  if (member != nullptr) opened.settings.member = member;
  if (opened.settings.container.empty()) opened.settings.container = own_container(session);
  opened.until = after(settings.lease);
  return absl::OkStatus();
}

std::optional<std::set<TaskId>> MasterSessions::close(uint64_t session) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return std::nullopt;
  std::set<TaskId> tasks = std::move(found->second.tasks);
  sessions_.erase(found);
  return tasks;
}

void MasterSessions::reject(uint64_t session) {
  MutexLock lock(mutex_);
  closed_.push_front(session);
  if (closed_.size() > kMostClosed) closed_.pop_back();
}

absl::Status MasterSessions::check_not_closed(uint64_t session) const {
  const bool closed = std::ranges::find(closed_, session) != closed_.end();
  return closed ? unknown_session(session) : absl::OkStatus();
}

void MasterSessions::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  sessions_.clear();
}

bool MasterSessions::stopped() {
  MutexLock lock(mutex_);
  return stopped_;
}

std::shared_ptr<SessionJob> MasterSessions::job_of(uint64_t session) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.settings.member;
}

absl::Status MasterSessions::begin_join(uint64_t session, const SessionSettings& settings) {
  TRIREME_RETURN_IF_ERROR(check_settings(session, settings));
  MutexLock lock(mutex_);
  TRIREME_RETURN_IF_ERROR(check_not_closed(session));
  if (joining_.insert(session).second) return absl::OkStatus();
  return make_status(ErrorCode::kUnavailable,
                     absl::StrCat("another request of session ", format_incarnation(session),
                                  " is joining its job"));
}

void MasterSessions::end_join(uint64_t session) {
  MutexLock lock(mutex_);
  joining_.erase(session);
}

absl::StatusOr<MasterSessions::Lookup> MasterSessions::look_up(uint64_t session, uint64_t graph) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return unknown_session(session);
  const auto* known = found->second.graphs.find(graph);
  return Lookup{found->second.settings, known == nullptr ? nullptr : *known};
}

absl::StatusOr<std::shared_ptr<MasterGraph>> MasterSessions::find_graph(uint64_t session,
                                                                        uint64_t graph) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return unknown_session(session);
  found->second.until = after(found->second.settings.lease);
  const auto* known = found->second.graphs.find(graph);
  if (known == nullptr) return nullptr;
  return *known;
}

absl::StatusOr<std::shared_ptr<MasterGraph>> MasterSessions::add_graph(
    uint64_t session, uint64_t number, std::shared_ptr<MasterGraph> graph,
    const std::set<TaskId>& tasks) {
  std::vector<std::shared_ptr<MasterGraph>> evicted;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return unknown_session(session);
  Session& open = found->second;
  open.until = after(open.settings.lease);
  open.tasks.insert(tasks.begin(), tasks.end());
  // Two attempts of one call may both get here. Steps may already run with the graph of the first.
  if (const auto* known = open.graphs.find(number)) return *known;
  open.graphs.put(number, graph);
  // A graph with steps in flight stays, because review() has the health of their tasks checked.
  evicted = open.graphs.evict(kMostGraphs, [&](const std::shared_ptr<MasterGraph>& other) {
    return other != graph && !other->has_steps();
  });
  return graph;
}

bool MasterSessions::add_step(uint64_t session, uint64_t token, std::weak_ptr<RunningStep> step) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return true;
  Session& open = found->second;
  if (std::ranges::find(open.cancelled, token) != open.cancelled.end()) return false;
  open.running[token] = std::move(step);
  return true;
}

void MasterSessions::remove_step(uint64_t session, uint64_t token) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) found->second.running.erase(token);
}

std::shared_ptr<RunningStep> MasterSessions::cancel_step(uint64_t session, uint64_t token) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return nullptr;
  std::list<uint64_t>& cancelled = found->second.cancelled;
  cancelled.push_front(token);
  if (cancelled.size() > kMostCancelled) cancelled.pop_back();
  const auto running = found->second.running.find(token);
  return running == found->second.running.end() ? nullptr : running->second.lock();
}

MasterSessions::Review MasterSessions::review(Time now) {
  Review review;
  MutexLock lock(mutex_);
  for (auto& [id, session] : sessions_) {
    for (const auto& [number, graph] : session.graphs) review.graphs.push_back(graph);
    if (session.until < now) {
      review.expired.push_back(id);
    } else if (now - session.renewed > session.settings.lease / 4) {
      session.renewed = now;
      review.renewals.push_back({id, session.tasks, session.settings.lease});
    }
  }
  return review;
}

}  // namespace trireme::internal
