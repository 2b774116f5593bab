#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/executor.h"
#include "trireme/ps/hosted_jobs.h"
#include "trireme/rpc/service.h"

namespace trireme {

// The methods of trireme.Jobs; ps/jobs.proto says what they carry.
inline constexpr char kFindJob[] = "/trireme.Jobs/Find";
inline constexpr char kJoinJob[] = "/trireme.Jobs/Join";
inline constexpr char kBeginJob[] = "/trireme.Jobs/Begin";
inline constexpr char kRenewJob[] = "/trireme.Jobs/Renew";
inline constexpr char kFenceJob[] = "/trireme.Jobs/Fence";
inline constexpr char kEndMember[] = "/trireme.Jobs/End";
inline constexpr char kListJobs[] = "/trireme.Jobs/List";
inline constexpr char kDropJob[] = "/trireme.Jobs/Drop";

namespace internal {

// Returns the methods of trireme.Jobs. Renewals are served on the thread that received them, so
// that a busy pool cannot end a lease; calls that wait for the locks of variables run on the pool.
// Both must outlive the methods.
std::vector<Method> job_methods(HostedJobs& jobs, Executor& pool);

// Returns the end of a lease that a request asks for: at most a day from now.
Time requested_lease_end(const HostedJobs& jobs, int64_t lease_until_ms);

}  // namespace internal
}  // namespace trireme
