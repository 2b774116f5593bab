#include "trireme/ps/hosted_jobs.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/ps/fence.h"
#include "trireme/rpc/timer.h"

// A new generation fences all lower ones in three steps: the table rejects their renewals, the
// writers reject their pushes, and the store rejects their names. Then begin() waits until each
// variable's lock was free once. An update that was admitted before has been applied by then, and
// the program that begins the generation sees it when it reads.
namespace trireme::internal {
namespace {

constexpr uint64_t kAllGenerations = std::numeric_limits<uint64_t>::max();
// Time for which a writer outlives its member. A program that returns after a long silence then
// learns from its renewal that it is not a member any more. If only its writer were gone, its
// renewals would succeed and all its pushes would be rejected.
constexpr Duration kWriterMargin = std::chrono::minutes(1);

}  // namespace

HostedJobs::HostedJobs(VariableStore& store, Writers& writers, Executor& pool,
                       JobTableOptions options)
    : options_(options), store_(store), writers_(writers), pool_(pool), table_(options) {}

void HostedJobs::start() {
  const Duration pause = std::clamp<Duration>(
      options_.keep_after_lease / 10, std::chrono::milliseconds(10), std::chrono::seconds(5));
  run_at(after(pause), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      // stop() waits for this lock, so the pool still exists.
      MutexLock lock(self->timer_mutex_);
      if (self->stopped_) return;
      self->pool_.submit([self] { self->expire(); });
    }
    self->start();
  });
}

void HostedJobs::stop() {
  MutexLock lock(timer_mutex_);
  stopped_ = true;
}

absl::StatusOr<JobTable::Begun> HostedJobs::begin(const JobTable::BeginRequest& request) {
  JobTable::Begun begun;
  {
    MutexLock lock(changing_);
    TRIREME_ASSIGN_OR_RETURN(begun, table_.begin(request));
    if (begun.is_new) {
      const JobKey& job = request.job;
      writers_.end_generations(job.id, job.generation,
                               absl::StrCat("a newer program of job '", job.id,
                                            "' has taken over with generation ", job.generation));
      store_.begin_job(job, begun.fresh);
    }
  }
  // Also for a repetition: the first request may still be waiting here.
  wait_for_updates(store_);
  return begun;
}

absl::Status HostedJobs::begin_writer(uint64_t writer, const WriterOwner& owner, Time lease_end) {
  MutexLock lock(changing_);
  if (!owner.job.empty()) {
    TRIREME_RETURN_IF_ERROR(table_.check({owner.job, owner.generation}));
  }
  return writers_.begin(writer, owner, lease_end);
}

void HostedJobs::fence(uint64_t writer, uint64_t below) {
  fence_writer(writers_, store_, writer, below);
}

absl::Status HostedJobs::renew(const JobKey& job, uint64_t member, Time until, Time sent,
                               const std::vector<Fence>& fences) {
  TRIREME_RETURN_IF_ERROR(table_.renew(job, member, until, sent));
  for (const Fence& fence : fences) writers_.renew(fence.writer, until, fence.below);
  return absl::OkStatus();
}

bool HostedJobs::end(const JobTable::EndRequest& request) {
  JobTable::Ended ended;
  {
    MutexLock lock(changing_);
    ended = table_.end(request);
    writers_.end_member({request.job.id, request.job.generation, request.member},
                        "its program has left the job");
    if (ended.frees) free_job(request.job.id, "its job has ended");
  }
  wait_for_updates(store_);
  return ended.last;
}

bool HostedJobs::drop(const std::string& job) {
  MutexLock lock(changing_);
  if (!table_.drop(job)) return false;
  free_job(job, "its job was dropped by `trireme jobs drop`");
  return true;
}

void HostedJobs::expire() {
  {
    MutexLock lock(changing_);
    for (const std::string& job : table_.expire()) {
      log_info("freeing the variables of job '", job, "': no program of it was heard from for ",
               format_duration(options_.keep_after_lease));
      free_job(job, "its program was silent for too long");
    }
    writers_.end_lapsed(options_.keep_after_lease + kWriterMargin);
  }
  for (const auto& variable : store_.list()) variable->forget_pushes();
}

void HostedJobs::free_job(const std::string& job, const std::string& why) {
  writers_.end_generations(job, kAllGenerations, why);
  store_.drop_job(job);
}

}  // namespace trireme::internal
