#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/function/worker_values.h"

namespace trireme::internal {

// Lets workers that train together act as one program: worker 0, the chief, decides and writes
// files, and all workers throw the errors. All workers must make the same calls in the same order.
// Without a group this process decides alone, and nothing is sent. Functions throw Error if the
// group has failed. Immutable, and thread-safe therefore.
class WorkerAgreement {
 public:
  // `workers` is null if there is only this process. It must outlive the object.
  explicit WorkerAgreement(WorkerGroup* workers) : workers_(workers) {}

  bool alone() const { return workers_ == nullptr; }
  int workers() const { return alone() ? 1 : workers_->workers(); }  // number of workers
  int worker() const { return alone() ? 0 : workers_->worker(); }    // number of this worker
  // Returns true in the process that decides and writes files.
  bool is_chief() const { return worker() == 0; }

  // Calls a function on worker 0. Returns its result on all workers, or throws its error on all.
  std::string decide(const std::function<std::string()>& function, const std::string& tag) const;
  // Returns for each flag whether it is true on any worker.
  std::vector<bool> any(const std::vector<bool>& flags, const std::string& tag) const;
  // Returns the results of all workers, by worker.
  std::vector<absl::StatusOr<std::string>> all(const absl::StatusOr<std::string>& mine,
                                               const std::string& tag) const;
  // Throws the error of the first worker that has one, on all workers. The error names the worker.
  void check(const absl::Status& mine, const std::string& tag) const;

  // Ends the group with the exception that is being handled, so that no worker waits for this one.
  // `what` says what it has thrown.
  void fail(const std::string& what) const;

 private:
  WorkerGroup* workers_;
};

}  // namespace trireme::internal
