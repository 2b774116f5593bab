#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/ps/job_table.h"
#include "trireme/ps/push_records.h"
#include "trireme/ps/variable_store.h"

namespace trireme::internal {

// The jobs of one server, together with their variables and writers: applies to these what the
// table of jobs decides. Thread-safe. Must be held by a shared_ptr. The store, the writers and the
// pool must outlive stop(). Methods other than renew() and now() wait for the locks of variables,
// so they must not be called on a thread that serves the network.
class HostedJobs : public std::enable_shared_from_this<HostedJobs> {
 public:
  HostedJobs(VariableStore& store, Writers& writers, Executor& pool, JobTableOptions options);

  // Begins to look for jobs whose variables are to be freed. Call it once, after the object is held
  // by a shared_ptr.
  void start();
  // Ends that.
  void stop();

  // Returns the table, for calls that change nothing but the table itself.
  JobTable& table() { return table_; }
  const VariableStore& store() const { return store_; }

  // Begins a generation (JobTable::begin). When it returns, no update of a lower generation is
  // being applied, and none will be.
  absl::StatusOr<JobTable::Begun> begin(const JobTable::BeginRequest& request);
  // Registers a writer. Fails with ABORTED if the generation of its owner is not the current one.
  absl::Status begin_writer(uint64_t writer, const WriterOwner& owner, Time lease_end);
  // Raises the writer's watermark. When it returns, no push of the writer below it is being
  // applied, and none will be.
  void fence(uint64_t writer, uint64_t below);

  // A writer of a member, and the sequence below which its pushes are fenced.
  struct Fence {
    uint64_t writer = 0;
    uint64_t below = 0;
  };
  // Raises the watermarks of the member's writers to their fences, and then renews the leases of
  // the member and of these writers. `sent` is the time at which the member sent the renewal. Fails
  // with ABORTED if the member is not in the job any more.
  absl::Status renew(const JobKey& job, uint64_t member, Time until, Time sent,
                     const std::vector<Fence>& fences);

  // Ends a member and its writers. Returns true if the job ends with it.
  bool end(const JobTable::EndRequest& request);
  // Ends a job and frees its variables. Returns false if there is no such job.
  bool drop(const std::string& job);
  // Frees the variables of jobs whose leases ran out long ago, the writers of programs that were
  // killed, and the records of pushes that are decided.
  void expire();

  // Returns the current time, on the clock of leases.
  Time now() const { return options_.clock->now(); }

 private:
  // Ends all writers of a job and frees its variables.
  void free_job(const std::string& job, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changing_);

  const JobTableOptions options_;
  VariableStore& store_;
  Writers& writers_;
  Executor& pool_;
  JobTable table_;
  // Held while a decision of the table is applied to the store and the writers, so that decisions
  // are applied in their order. Taken before the locks of variables, and never by renew().
  Mutex changing_;
  Mutex timer_mutex_;
  bool stopped_ ABSL_GUARDED_BY(timer_mutex_) = false;
};

}  // namespace trireme::internal
