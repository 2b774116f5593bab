#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/cluster/task_id.h"

namespace trireme {

// The job that a session takes part in, because its variables are in a container of that job.
struct SessionJobOptions {
  std::string id;        // empty for none
  bool resume = false;   // true if a new generation continues with the variables of the last one
  bool keep = false;     // true if the variables are kept when the job ends in order
  uint64_t session = 0;  // number of the session, which is the number of the job's member too
  // Generation that the session took part in before its master forgot it; 0 for none. The session
  // must not go on if another program has taken over since.
  uint64_t generation = 0;
  // Time at which the client program sent its request, on the clock of the master, or earlier. The
  // program was alive then; it may have been killed while the request was under way.
  Time sent = {};
};

// A session's part in a job. Its master holds it while the session is open, and renews its lease
// whenever the client program renews the session. If it is destroyed without leave(), its lease
// runs out. Thread-safe. The module ps/ implements it (ps/session_jobs.h).
class SessionJob {
 public:
  virtual ~SessionJob() = default;

  // Returns the generation of the job that the session takes part in.
  virtual uint64_t generation() const = 0;
  // Begins the generation at a task, unless that was done for this incarnation of it. Blocks.
  virtual absl::Status begin(const TaskId& task, uint64_t incarnation, Time deadline) = 0;
  // Renews the lease at all tasks, on behalf of a client program that was alive at `sent`. Does not
  // wait for them.
  virtual void renew(Time sent) = 0;
  // Leaves the job. If the session is its last member, the job ends. Blocks for some seconds at
  // most.
  virtual void leave() = 0;
};

// Joins a job on behalf of a session, or begins a new generation of it. Blocks until the deadline
// at most.
using JoinSessionJob = std::function<absl::StatusOr<std::shared_ptr<SessionJob>>(
    const SessionJobOptions& options, Time deadline)>;

}  // namespace trireme
