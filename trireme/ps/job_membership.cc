#include "trireme/ps/job_membership.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/ps/job_service.h"
#include "trireme/ps/jobs.pb.h"
#include "trireme/ps/variable_methods.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/timer.h"

// How a program joins a job:
//
//   1. Find, at all servers: the highest generation that any of them knows.
//   2. Join, at the server with the counter, until it is decided: the program takes part in the
//      generation of members that are alive, or reserves the next one.
//   3. Begin, at all other servers, and then at the server with the counter. Until then no other
//      program can join the generation. If this program dies halfway, the next one reserves a
//      higher generation.
//
// From then on a timer sends a renewal to every server, whether the last one was answered or not:
// a server that does not answer must not delay the renewals at the others. The end of each lease is
// requested on the server's own clock (lease_clock.h). All renewals are made under mutex_, and so
// are fences: a renewal either carries a fence, or raise_fence() counts the lease that it requests.
namespace trireme {

namespace {

constexpr Duration kShortestLease = std::chrono::milliseconds(100);
constexpr Duration kLongestLease = std::chrono::hours(24);
// Time limit of calls that are made when a program starts or a writer begins.
constexpr Duration kCallTime = std::chrono::minutes(2);
// Time limit of the call that ends the member at a server which was added too late for leave().
constexpr Duration kLeaveTime = std::chrono::seconds(2);

absl::Status check_job_options(const JobOptions& options) {
  TRIREME_RETURN_IF_ERROR(check_job_id(options.id));
  if (options.lease >= kShortestLease && options.lease <= kLongestLease) return absl::OkStatus();
  return invalid_argument(absl::StrCat("the lease of job '", options.id, "' is ",
                                       format_duration(options.lease),
                                       "; it must be between 100 ms and one day"));
}

template <typename Body>
void set_member(const JobKey& job, uint64_t member, Body& body) {
  body.set_job(job.id);
  body.set_generation(job.generation);
  body.set_member(member);
}

// Returns the error for a server that is added after the program has left the job.
absl::Status has_left(const std::string& job, const std::string& task) {
  return make_status(ErrorCode::kAborted, absl::StrCat("the session has left job '", job, "'"),
                     {task, ""});
}

}  // namespace

JobMembership::JobMembership(JobOptions options, const Channels& servers)
    : options_(std::move(options)),
      member_(options_.member == 0 ? new_incarnation() : options_.member),
      keep_(options_.keep) {
  for (const auto& channel : servers) servers_.push_back({.channel = channel});
}

absl::StatusOr<std::shared_ptr<JobMembership>> JobMembership::join(JobOptions options,
                                                                   Channels servers,
                                                                   Time deadline) {
  if (options.id.empty()) options.id = absl::StrCat("job-", format_incarnation(new_incarnation()));
  TRIREME_RETURN_IF_ERROR(check_job_options(options));
  std::shared_ptr<JobMembership> made(new JobMembership(std::move(options), servers));
  made->job_.id = made->options_.id;
  TRIREME_ASSIGN_OR_RETURN(const uint64_t known, made->find_generation(deadline));
  TRIREME_RETURN_IF_ERROR(made->choose_generation(known, deadline));
  absl::Status begun = made->begin(1, servers.size(), deadline);
  if (begun.ok()) begun = made->begin(0, 1, deadline);
  if (!begun.ok()) {
    made->leave(std::chrono::seconds(1));  // so that the next program need not wait
    return begun;
  }
  made->renew(made->options_.alive_at.value_or(Clock::real().now()));
  if (made->options_.timer) made->start_timer();
  return made;
}

template <typename Make, typename Read>
absl::Status JobMembership::call_servers(const char* method, size_t first, size_t last,
                                         const CallOptions& options, Make make, Read read) {
  struct Answer {
    Response response;
    Time received;
  };
  std::vector<std::future<Answer>> answers;
  for (size_t i = first; i < last; ++i) {
    std::shared_ptr<Channel> channel;
    Message message;
    {
      MutexLock lock(mutex_);
      channel = servers_[i].channel;
      message = make_message(make(servers_[i]));
    }
    auto answer = std::make_shared<std::promise<Answer>>();
    answers.push_back(answer->get_future());
    channel->call(method, std::move(message), options, [answer](Response response) {
      answer->set_value({std::move(response), Clock::real().now()});
    });
  }
  absl::Status status;
  for (size_t i = first; i < last; ++i) {
    const Answer answer = answers[i - first].get();  // the call's deadline ends the wait
    status.Update(answer.response.status());
    if (!answer.response.ok()) continue;
    MutexLock lock(mutex_);
    status.Update(read(servers_[i], *answer.response, answer.received));
  }
  return status;
}

absl::StatusOr<uint64_t> JobMembership::find_generation(Time deadline) {
  FindJobRequest request;
  request.set_job(job_.id);
  uint64_t highest = options_.at_least;
  TRIREME_RETURN_IF_ERROR(call_servers(
      kFindJob, 0, servers(), {.deadline = deadline, .retry = RetryPolicy()},
      [&](Server&) { return request; },
      [&](Server& server, const Message& message, Time received) -> absl::Status {
        TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<FindJobResponse>(message));
        server.clock.note_answer(received, response.clock_ms());
        highest = std::max(highest, response.generation());
        return absl::OkStatus();
      }));
  return highest;
}

absl::Status JobMembership::choose_generation(uint64_t at_least, Time deadline) {
  JoinJobRequest request;
  request.set_job(job_.id);
  request.set_member(member_);
  request.set_at_least(at_least);
  const Duration pause = std::clamp<Duration>(options_.lease / 20, std::chrono::milliseconds(10),
                                              std::chrono::milliseconds(100));
  const Time start = Clock::real().now();
  bool logged = false;
  for (;;) {
    JoinJobResponse response;
    TRIREME_RETURN_IF_ERROR(call_servers(
        kJoinJob, 0, 1, {.deadline = deadline, .retry = RetryPolicy()},
        [&](Server& server) {
          const Time now = Clock::real().now();
          request.set_lease_until_ms(server.clock.request(now, options_.lease));
          return request;
        },
        [&](Server& server, const Message& message, Time received) -> absl::Status {
          TRIREME_ASSIGN_OR_RETURN(response, parse_body<JoinJobResponse>(message));
          server.clock.note_answer(received, response.clock_ms());
          return absl::OkStatus();
        }));
    if (response.outcome() != JoinJobResponse::UNDECIDED) {
      job_.generation = response.generation();
      joined_ = response.outcome() == JoinJobResponse::JOINED;
      began_ = response.began();
      resumed_ = joined_ ? response.resumed() : options_.resume;
      return absl::OkStatus();
    }
    if (!request.has_asked_ms()) request.set_asked_ms(response.clock_ms());
    const Time next = after(pause);
    if (next > deadline) {
      return make_status(ErrorCode::kDeadlineExceeded,
                         absl::StrCat("cannot join job '", job_.id,
                                      "': programs of it hold a lease, but none of them has "
                                      "renewed it before the deadline; allow more time"),
                         {task(0), ""});
    }
    if (!logged && next - start > std::chrono::seconds(1)) {
      logged = true;
      log_info("waiting until an earlier program of job '", job_.id,
               "' renews its lease or the lease runs out");
    }
    internal::block_until(next);
  }
}

absl::Status JobMembership::begin(size_t first, size_t last, Time deadline) {
  return call_servers(
      kBeginJob, first, last, {.deadline = deadline, .retry = RetryPolicy()},
      [&](Server& server) {
        BeginJobRequest request;
        set_member(job_, member_, request);
        request.set_lease_until_ms(server.clock.request(Clock::real().now(), options_.lease));
        request.set_joined(joined_);
        request.set_resume(resumed_);
        return request;
      },
      [&](Server& server, const Message& message, Time received) -> absl::Status {
        TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<BeginJobResponse>(message));
        server.clock.note_answer(received, response.clock_ms());
        server.since = response.since();
        return absl::OkStatus();
      });
}

absl::Status JobMembership::add_server(std::shared_ptr<Channel> channel, Time deadline) {
  FindJobRequest find;
  find.set_job(job_.id);
  TRIREME_ASSIGN_OR_RETURN(
      const Message found,
      channel->call(kFindJob, make_message(find), {.deadline = deadline, .retry = RetryPolicy()}));
  Server server{.channel = std::move(channel)};
  TRIREME_ASSIGN_OR_RETURN(const auto known, parse_body<FindJobResponse>(found));
  server.clock.note_answer(Clock::real().now(), known.clock_ms());
  const std::string task = server.channel->task();
  {
    MutexLock lock(mutex_);
    if (left_) return has_left(job_.id, task);
  }
  BeginJobRequest request;
  set_member(job_, member_, request);
  request.set_lease_until_ms(server.clock.request(Clock::real().now(), options_.lease));
  request.set_resume(resumed_);
  const Response begun = server.channel->call(kBeginJob, make_message(request),
                                              {.deadline = deadline, .retry = RetryPolicy()});
  if (!begun.ok()) {
    const bool is_over = known.ended() || known.members() == 0;
    const bool is_newer = known.generation() > job_.generation;
    if (error_code(begun.status()) != ErrorCode::kAborted || !is_newer || !is_over) {
      return begun.status();
    }
    return make_status(ErrorCode::kFailedPrecondition,
                       absl::StrCat("it did not answer when generation ", job_.generation,
                                    " of job '", job_.id, "' began, and knows generation ",
                                    known.generation(), ", which is over; open the session again"),
                       {task, ""});
  }
  TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<BeginJobResponse>(*begun));
  server.clock.note_answer(Clock::real().now(), response.clock_ms());
  server.since = response.since();
  return insert_server(std::move(server));
}

absl::Status JobMembership::insert_server(Server server) {
  const std::shared_ptr<Channel> channel = server.channel;
  EndMemberRequest request;
  {
    MutexLock lock(mutex_);
    if (!last_) {
      const auto old = std::ranges::find_if(
          servers_, [&](const Server& known) { return known.channel->task() == channel->task(); });
      if (old == servers_.end()) {
        servers_.push_back(std::move(server));
      } else {
        *old = std::move(server);
      }
      return left_ ? has_left(job_.id, channel->task()) : absl::OkStatus();
    }
    request.set_keep(keep_);
    request.set_last(*last_);
  }
  // leave() did not see this server, so the member would stay there. An error does not matter, as
  // in leave().
  set_member(job_, member_, request);
  channel
      ->call(kEndMember, make_message(request),
             {.deadline = after(kLeaveTime), .retry = RetryPolicy()})
      .IgnoreError();
  return has_left(job_.id, channel->task());
}

int JobMembership::servers() const {
  MutexLock lock(mutex_);
  return static_cast<int>(servers_.size());
}

std::string JobMembership::task(int server) const {
  MutexLock lock(mutex_);
  return servers_[server].channel->task();
}

std::vector<uint64_t> JobMembership::since() const {
  std::vector<uint64_t> since;
  MutexLock lock(mutex_);
  for (const Server& server : servers_) since.push_back(server.since);
  return since;
}

absl::Status JobMembership::begin_writer(uint64_t writer) {
  {
    MutexLock lock(mutex_);
    fences_.try_emplace(writer, 0);
  }
  const absl::Status status = call_servers(
      kBeginWriter, 0, servers(), {.deadline = after(kCallTime), .retry = RetryPolicy()},
      [&](Server& server) {
        BeginWriterRequest request;
        set_member(job_, member_, request);
        request.set_writer(writer);
        request.set_lease_until_ms(server.clock.request(Clock::real().now(), options_.lease));
        return request;
      },
      [&](Server& server, const Message& message, Time received) -> absl::Status {
        TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<BeginWriterResponse>(message));
        server.clock.note_answer(received, response.clock_ms());
        return absl::OkStatus();
      });
  if (!status.ok()) {
    MutexLock lock(mutex_);
    fences_.erase(writer);
  }
  return status;
}

absl::Status JobMembership::end_writer(uint64_t writer, Duration timeout) {
  {
    MutexLock lock(mutex_);
    fences_.erase(writer);
  }
  EndWriterRequest request;
  request.set_writer(writer);
  return call_servers(
      kEndWriter, 0, servers(), {.deadline = after(timeout)}, [&](Server&) { return request; },
      [](Server&, const Message&, Time) { return absl::OkStatus(); });
}

std::vector<Time> JobMembership::raise_fence(uint64_t writer, uint64_t below) {
  std::vector<Time> run_out;
  MutexLock lock(mutex_);
  const auto found = fences_.find(writer);
  if (found != fences_.end()) found->second = std::max(found->second, below);
  for (const Server& server : servers_) run_out.push_back(server.clock.run_out());
  return run_out;
}

void JobMembership::fence(int server, uint64_t writer, uint64_t below, Time deadline,
                          absl::AnyInvocable<void(absl::Status)> done) {
  FenceRequest request;
  request.set_job(job_.id);
  request.set_generation(job_.generation);
  request.set_writer(writer);
  request.set_below(below);
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(mutex_);
    channel = servers_[server].channel;
  }
  const RetryPolicy retry{.attempt_time = std::chrono::seconds(1),
                          .longest_delay = std::chrono::milliseconds(200),
                          .unreachable_time = std::chrono::milliseconds(500)};
  channel->call(
      kFenceJob, make_message(request), {.deadline = deadline, .retry = retry},
      [done = std::move(done)](const Response& response) mutable { done(response.status()); });
}

void JobMembership::renew(Time sent) {
  std::vector<std::pair<std::shared_ptr<Channel>, RenewJobRequest>> requests;
  {
    MutexLock lock(mutex_);
    if (left_ || !ended_.ok()) return;
    RenewJobRequest request;
    set_member(job_, member_, request);
    for (const auto& [writer, below] : fences_) {
      auto& fence = *request.add_writers();
      fence.set_writer(writer);
      fence.set_fenced_below(below);
    }
    for (Server& server : servers_) {
      request.set_sent_ms(server.clock.at(sent));
      request.set_lease_until_ms(server.clock.request(sent, options_.lease));
      requests.emplace_back(server.channel, request);
    }
  }
  for (const auto& [channel, request] : requests) {
    channel->call(kRenewJob, make_message(request), {.deadline = after(options_.lease / 3 * 2)},
                  [weak = weak_from_this(), channel = channel](const Response& response) {
                    if (const auto self = weak.lock()) self->on_renewed(channel, response);
                  });
  }
}

void JobMembership::on_renewed(const std::shared_ptr<Channel>& channel, const Response& response) {
  const Time received = Clock::real().now();
  if (!response.ok()) {
    // A server that does not answer is another's concern: calls to it fail and name it.
    if (error_code(response.status()) == ErrorCode::kAborted) end(response.status());
    return;
  }
  const auto answer = parse_body<RenewJobResponse>(*response);
  if (!answer.ok()) return;
  MutexLock lock(mutex_);
  // A server that was replaced meanwhile has another clock.
  const auto found = std::ranges::find(servers_, channel, &Server::channel);
  if (found != servers_.end()) found->clock.note_answer(received, answer->clock_ms());
}

void JobMembership::start_timer() {
  internal::run_at(after(options_.lease / 3), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->renew();
    self->start_timer();
  });
}

void JobMembership::end(const absl::Status& why) {
  std::map<uint64_t, Callback> callbacks;
  {
    MutexLock lock(mutex_);
    if (left_ || !ended_.ok()) return;
    ended_ = why;
    callbacks.swap(callbacks_);
  }
  log_warning("this program no longer takes part in job '", job_.id, "': ", describe(why));
  for (auto& [token, callback] : callbacks) callback(why);
}

absl::Status JobMembership::status() const {
  MutexLock lock(mutex_);
  return ended_;
}

absl::Status JobMembership::explain(absl::Status error) const {
  if (error.ok()) return error;
  const absl::Status ended = status();
  return ended.ok() ? error : ended;
}

uint64_t JobMembership::on_end(Callback callback) {
  absl::Status ended;
  uint64_t token;
  {
    MutexLock lock(mutex_);
    token = ++last_token_;
    ended = ended_;
    if (ended.ok()) callbacks_[token] = std::move(callback);
  }
  if (!ended.ok()) callback(ended);
  return token;
}

void JobMembership::remove_on_end(uint64_t token) {
  Callback removed;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  const auto found = callbacks_.find(token);
  if (found == callbacks_.end()) return;
  removed = std::move(found->second);
  callbacks_.erase(found);
}

void JobMembership::keep_variables() {
  MutexLock lock(mutex_);
  keep_ = true;
}

void JobMembership::leave(Duration timeout) {
  EndMemberRequest request;
  {
    MutexLock lock(mutex_);
    if (std::exchange(left_, true)) return;
    if (!ended_.ok()) {
      last_ = false;
      return;
    }
    request.set_keep(keep_);
  }
  set_member(job_, member_, request);
  const Time start = Clock::real().now();
  bool last = false;
  const auto end_at = [&](size_t from, size_t to, Duration limit) {
    return call_servers(
        kEndMember, from, to, {.deadline = start + limit}, [&](Server&) { return request; },
        [&](Server&, const Message& message, Time) -> absl::Status {
          TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<EndMemberResponse>(message));
          if (from == 0) last = response.last();
          return absl::OkStatus();
        });
  };
  // Errors do not matter: a server that does not answer is lost, has ended before this program, or
  // frees the variables when the lease has run out.
  end_at(0, 1, timeout / 2).IgnoreError();
  request.set_last(last);
  size_t servers;
  {
    MutexLock lock(mutex_);
    last_ = last;
    servers = servers_.size();
  }
  end_at(1, servers, timeout).IgnoreError();
}

}  // namespace trireme
