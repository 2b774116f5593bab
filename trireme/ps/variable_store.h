#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/files.h"
#include "trireme/ps/job_key.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/stored_variable.h"
#include "trireme/runtime/variable_host.h"

namespace trireme {

struct VariableStoreOptions {
  // Limit in bytes for variables and their optimizers' state; 0 for no limit. Variables and
  // optimizers that exceed it are rejected.
  uint64_t memory_limit = 0;
  // Limits in bytes for pushes that are arriving or being applied, and for copies that pulls are
  // sending. Calls beyond a limit wait. Calls of less than a frame do not count.
  uint64_t push_bytes = uint64_t{512} << 20;
  uint64_t pull_bytes = uint64_t{512} << 20;
  // Time for which the variables of a job are kept after the leases of its programs have run out.
  Duration keep_after_lease = std::chrono::minutes(5);
  // Time after which a save is given up, without progress of the disk or without its client asking.
  Duration give_up_saves_after = std::chrono::minutes(1);
  Files* files = &Files::local();  // files of checkpoints; must outlive the server
  // Clock of leases. Must outlive the server.
  const Clock* clock = &Clock::real();
};

// Holds the variables of one server. Variables are found by job, container and name, and by a
// handle, which is quicker and is used by the calls of every step. A handle is never reused. The
// variables of a job can be used by its current generation only, by name; those of no job by all.
// Thread-safe. Variables may outlive the store.
class VariableStore final : public VariableHost {
 public:
  using Variable = std::shared_ptr<StoredVariable>;

  explicit VariableStore(VariableStoreOptions options = {}) : options_(options) {}

  absl::StatusOr<std::shared_ptr<HostedVariable>> find(const VariableScope& scope,
                                                       const std::string& name) override;
  absl::StatusOr<std::shared_ptr<HostedVariable>> create(const VariableScope& scope,
                                                         const std::string& name,
                                                         const at::Tensor& initial,
                                                         c10::Device device = c10::kCPU) override;
  absl::Status check(const VariableScope& scope) const override;
  void drop_container(const VariableScope& scope) override;

  // Makes a generation the current one of its job. The variables of earlier generations are freed
  // if it is `fresh`, and otherwise belong to it from now on.
  void begin_job(const JobKey& job, bool fresh);
  // Frees all variables of a job. No generation of it is current afterwards.
  void drop_job(const std::string& job);

  struct Created {
    Variable variable;
    bool is_new = false;  // true if this call created it
  };
  // Creates a variable of this shape, whose contents `fill` writes, or finds the one that exists.
  // Memory is allocated only if there is no such variable yet. Fails with RESOURCE_EXHAUSTED beyond
  // the memory limit and with ALREADY_EXISTS if the variable has another shape or dtype.
  absl::StatusOr<Created> make(const VariableScope& scope, const std::string& name,
                               const internal::TensorShape& shape,
                               const std::function<void(at::Tensor&)>& fill, uint64_t member = 0,
                               c10::Device device = c10::kCPU);

  // Finds a variable by name. Fails with NOT_FOUND if there is none.
  absl::StatusOr<Variable> lookup(const VariableScope& scope, const std::string& name);

  struct Found {
    Variable variable;        // null if there is none
    uint64_t generation = 0;  // generation that created it
    uint64_t member = 0;      // member of the job that created it
  };
  // Finds variables by name, in the order of the names. Fails only if the scope is not current.
  absl::StatusOr<std::vector<Found>> find_all(const VariableScope& scope,
                                              const std::vector<std::string>& names) const;
  // Returns the variables in the order of the handles. Fails with NOT_FOUND if a handle is unknown.
  template <typename Handles>
  absl::StatusOr<std::vector<Variable>> lookup(const Handles& handles) {
    std::vector<Variable> variables;
    variables.reserve(handles.size());
    ReaderLock lock(mutex_);
    for (const uint64_t handle : handles) {
      const auto found = by_handle_.find(handle);
      if (found == by_handle_.end()) return no_such_handle(handle);
      variables.push_back(found->second.variable);
    }
    return variables;
  }

  // Does the same for variables of the scope's job. Fails with INVALID_ARGUMENT if a handle is that
  // of another job, and with ABORTED if the scope's generation is not the current one of its job.
  absl::StatusOr<std::vector<Variable>> lookup(const VariableScope& scope,
                                               const std::vector<uint64_t>& handles) const;

  // Deletes variables of the scope's job. Calls that are using them finish with them. Handles of
  // variables that are gone are ignored, so that a deletion can be repeated. Fails like lookup(),
  // and deletes nothing, if a handle is that of another job or the generation is not the current
  // one.
  absl::Status remove(const VariableScope& scope, const std::vector<uint64_t>& handles);
  // Gives a variable an optimizer and counts the optimizer's state against the memory limit.
  absl::Status set_optimizer(StoredVariable& variable,
                             std::shared_ptr<const internal::UpdateRule> rule);

  // Counts the bytes of a copy of variables against the memory limit. Fails with RESOURCE_EXHAUSTED
  // if they exceed it.
  absl::Status reserve_copy(uint64_t bytes);
  // Ends that.
  void release_copy(uint64_t bytes) { bytes_ -= bytes; }

  // Returns all variables.
  std::vector<Variable> list() const;
  struct Listed {
    std::string job;  // empty for a variable of no job
    Variable variable;
  };
  // Returns all variables with their jobs, sorted by job, container and name.
  std::vector<Listed> list_by_job() const;
  // Returns the bytes of all variables and their optimizers' state.
  uint64_t bytes() const { return bytes_; }
  uint64_t memory_limit() const { return options_.memory_limit; }

 private:
  using Container = absl::flat_hash_map<std::string, uint64_t>;  // handle by name
  struct Job {
    uint64_t generation = 0;
    absl::flat_hash_map<std::string, Container> containers;
  };
  struct Entry {
    Variable variable;
    std::string job;
    uint64_t generation = 0;  // generation that created it
    uint64_t member = 0;      // member of the job that created it
  };

  static absl::Status no_such_handle(uint64_t handle);
  // Counts bytes against the memory limit, before they are allocated. `what` names their use in the
  // error.
  absl::Status reserve(const std::string& name, uint64_t bytes, const char* what);
  // Stops counting the bytes of removed variables against the memory limit.
  void release(const std::vector<Variable>& removed);

  // Returns INVALID_ARGUMENT if the variable of an entry does not belong to the scope's job.
  static absl::Status check_job(const VariableScope& scope, const Entry& entry);
  // Returns the error of check().
  absl::Status check_current(const VariableScope& scope) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the entry of a variable; null if there is none.
  const Entry* find_entry(const VariableScope& scope, const std::string& name) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Removes the variables of a container from the handles, and appends them to `removed`.
  void take_out(const Container& container, std::vector<Variable>& removed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const VariableStoreOptions options_;
  std::atomic<uint64_t> bytes_ = 0;  // bytes that are reserved, whether allocated yet or not
  mutable SharedMutex mutex_;
  absl::flat_hash_map<std::string, Job> jobs_ ABSL_GUARDED_BY(mutex_);  // "" for those of no job
  absl::flat_hash_map<uint64_t, Entry> by_handle_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme
