#include "trireme/ps/job_list.h"

#include <utility>

#include "trireme/base/status.h"
#include "trireme/ps/job_service.h"
#include "trireme/ps/jobs.pb.h"

namespace trireme {

absl::StatusOr<std::vector<ListedJob>> list_jobs(Channel& channel, Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(const Message answer,
                           channel.call(kListJobs, make_message(ListJobsRequest()),
                                        {.deadline = deadline, .large_response = true}));
  TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<ListJobsResponse>(answer));
  std::vector<ListedJob> jobs;
  for (const auto& job : response.jobs()) {
    ListedJob& listed = jobs.emplace_back(ListedJob{.job = job.job(),
                                                    .generation = job.generation(),
                                                    .since = job.since(),
                                                    .members = job.members(),
                                                    .variables = job.variables(),
                                                    .bytes = job.bytes()});
    if (job.has_freed_in_ms()) listed.freed_in = std::chrono::milliseconds(job.freed_in_ms());
  }
  return jobs;
}

absl::StatusOr<bool> drop_job(Channel& channel, const std::string& job, Time deadline) {
  // The call is executed once, so it must name the incarnation that it is meant for.
  if (channel.incarnation() == 0) TRIREME_RETURN_IF_ERROR(channel.hello(deadline).status());
  DropJobRequest request;
  request.set_job(job);
  TRIREME_ASSIGN_OR_RETURN(const Message answer,
                           channel.call(kDropJob, make_message(request), {.deadline = deadline}));
  TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<DropJobResponse>(answer));
  return response.known();
}

}  // namespace trireme
