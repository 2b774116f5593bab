#include "trireme/ps/job_service.h"

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "trireme/base/peer_clock.h"
#include "trireme/base/status.h"
#include "trireme/ps/jobs.pb.h"

namespace trireme::internal {
namespace {

// Tasks may be members too: a master joins a job on behalf of a session.
constexpr Roles kMembers = {Role::kChief, Role::kWorker, Role::kPs, Role::kClient};
constexpr Roles kUsers = {Role::kChief, Role::kClient};

int64_t clock_of(const HostedJobs& jobs) {
  return to_clock_milliseconds(jobs.now());
}

// Returns a time on the server's clock that a request names, which cannot be in the future.
Time past_time(const HostedJobs& jobs, int64_t milliseconds) {
  return from_clock_milliseconds(milliseconds, jobs.now());
}

absl::StatusOr<FindJobResponse> serve_find(HostedJobs& jobs, const FindJobRequest& request) {
  const JobTable::Known known = jobs.table().find(request.job());
  FindJobResponse response;
  response.set_generation(known.generation);
  response.set_since(known.since);
  response.set_members(static_cast<uint32_t>(known.members));
  response.set_ended(known.ended);
  response.set_clock_ms(clock_of(jobs));
  return response;
}

absl::StatusOr<JoinJobResponse> serve_join(HostedJobs& jobs, const JoinJobRequest& request) {
  JobTable::JoinRequest join{.job = request.job(),
                             .member = request.member(),
                             .until = requested_lease_end(jobs, request.lease_until_ms()),
                             .at_least = request.at_least()};
  if (request.has_asked_ms()) join.asked_at = past_time(jobs, request.asked_ms());
  TRIREME_ASSIGN_OR_RETURN(const JobTable::Joined joined, jobs.table().join(join));
  JoinJobResponse response;
  using Outcome = JobTable::Joined::Outcome;
  response.set_outcome(joined.outcome == Outcome::kNew      ? JoinJobResponse::NEW
                       : joined.outcome == Outcome::kJoined ? JoinJobResponse::JOINED
                                                            : JoinJobResponse::UNDECIDED);
  response.set_generation(joined.generation);
  response.set_resumed(joined.resumed);
  response.set_began(joined.began);
  response.set_clock_ms(clock_of(jobs));
  return response;
}

absl::StatusOr<BeginJobResponse> serve_begin(HostedJobs& jobs, const BeginJobRequest& request) {
  TRIREME_ASSIGN_OR_RETURN(const JobTable::Begun begun,
                           jobs.begin({.job = {request.job(), request.generation()},
                                       .member = request.member(),
                                       .until = requested_lease_end(jobs, request.lease_until_ms()),
                                       .joined = request.joined(),
                                       .resume = request.resume()}));
  BeginJobResponse response;
  response.set_since(begun.since);
  response.set_clock_ms(clock_of(jobs));
  return response;
}

absl::StatusOr<RenewJobResponse> serve_renew(HostedJobs& jobs, const RenewJobRequest& request) {
  std::vector<HostedJobs::Fence> fences;
  for (const auto& writer : request.writers()) {
    fences.push_back({writer.writer(), writer.fenced_below()});
  }
  TRIREME_RETURN_IF_ERROR(jobs.renew({request.job(), request.generation()}, request.member(),
                                     requested_lease_end(jobs, request.lease_until_ms()),
                                     past_time(jobs, request.sent_ms()), fences));
  RenewJobResponse response;
  response.set_clock_ms(clock_of(jobs));
  return response;
}

absl::StatusOr<FenceResponse> serve_fence(HostedJobs& jobs, const FenceRequest& request) {
  // The generation is not checked. If a newer one has begun, the writer has ended, and all its
  // pushes are fenced.
  jobs.fence(request.writer(), request.below());
  FenceResponse response;
  response.set_clock_ms(clock_of(jobs));
  return response;
}

absl::StatusOr<EndMemberResponse> serve_end(HostedJobs& jobs, const EndMemberRequest& request) {
  JobTable::EndRequest end{.job = {request.job(), request.generation()},
                           .member = request.member(),
                           .keep = request.keep()};
  if (request.has_last()) end.last = request.last();
  EndMemberResponse response;
  response.set_last(jobs.end(end));
  return response;
}

absl::StatusOr<ListJobsResponse> serve_list(HostedJobs& jobs, const ListJobsRequest&) {
  struct Sizes {
    uint64_t variables = 0, bytes = 0;
  };
  std::map<std::string, Sizes> sizes;
  for (const VariableStore::Listed& listed : jobs.store().list_by_job()) {
    const StoredVariable::Stats stats = listed.variable->stats();
    Sizes& of_job = sizes[listed.job];
    ++of_job.variables;
    of_job.bytes += stats.bytes + stats.state_bytes;
  }
  ListJobsResponse response;
  for (const JobTable::Listed& listed : jobs.table().list()) {
    auto& job = *response.add_jobs();
    job.set_job(listed.job);
    job.set_generation(listed.known.generation);
    job.set_since(listed.known.since);
    job.set_members(static_cast<uint32_t>(listed.known.members));
    job.set_ended(listed.known.ended);
    if (listed.freed_in) {
      job.set_freed_in_ms(std::chrono::ceil<std::chrono::milliseconds>(*listed.freed_in).count());
    }
    job.set_variables(sizes[listed.job].variables);
    job.set_bytes(sizes[listed.job].bytes);
  }
  return response;
}

absl::StatusOr<DropJobResponse> serve_drop(HostedJobs& jobs, const DropJobRequest& request) {
  DropJobResponse response;
  response.set_known(jobs.drop(request.job()));
  return response;
}

// Makes a method that runs on the thread that received the call.
template <typename Request, typename Body>
Method job_method(HostedJobs& jobs, const char* name, Roles callers, Repeats repeats, Body body) {
  return {name, callers, repeats, [&jobs, body](ServerCall call) {
            const auto request = parse_body<Request>(call.request());
            if (!request.ok()) return call.respond(request.status());
            const auto response = body(jobs, *request);
            if (!response.ok()) return call.respond(response.status());
            call.respond(make_message(*response));
          }};
}

// Makes a method that runs on the pool.
template <typename Request, typename Body>
Method pooled_job_method(HostedJobs& jobs, Executor& pool, const char* name, Roles callers,
                         Repeats repeats, Body body) {
  Method method = job_method<Request>(jobs, name, callers, repeats, body);
  method.handler = [&pool, handler = std::move(method.handler)](ServerCall call) {
    pool.submit([handler, call = std::move(call)]() mutable { handler(std::move(call)); });
  };
  return method;
}

}  // namespace

Time requested_lease_end(const HostedJobs& jobs, int64_t lease_until_ms) {
  return from_clock_milliseconds(lease_until_ms, jobs.now() + std::chrono::hours(24));
}

std::vector<Method> job_methods(HostedJobs& jobs, Executor& pool) {
  return {
      job_method<FindJobRequest>(jobs, kFindJob, Roles::all(), Repeats::kHarmless, serve_find),
      job_method<JoinJobRequest>(jobs, kJoinJob, kMembers, Repeats::kHarmless, serve_join),
      pooled_job_method<BeginJobRequest>(jobs, pool, kBeginJob, kMembers, Repeats::kHarmless,
                                         serve_begin),
      job_method<RenewJobRequest>(jobs, kRenewJob, kMembers, Repeats::kHarmless, serve_renew),
      pooled_job_method<FenceRequest>(jobs, pool, kFenceJob, kMembers, Repeats::kHarmless,
                                      serve_fence),
      pooled_job_method<EndMemberRequest>(jobs, pool, kEndMember, kMembers, Repeats::kAnsweredOnce,
                                          serve_end),
      pooled_job_method<ListJobsRequest>(jobs, pool, kListJobs, Roles::all(), Repeats::kHarmless,
                                         serve_list),
      pooled_job_method<DropJobRequest>(jobs, pool, kDropJob, kUsers, Repeats::kAnsweredOnce,
                                        serve_drop),
  };
}

}  // namespace trireme::internal
