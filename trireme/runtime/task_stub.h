#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/placement/cutter.h"
#include "trireme/runtime/part_step.h"
#include "trireme/runtime/worker.h"

namespace trireme::internal {

// A task of the cluster as a master calls it: directly if it is the master's own (LocalTask),
// otherwise by RPC (RemoteTask). Methods with a callback do not block; they call back exactly once,
// on any thread, possibly before they return. Methods with neither a callback nor a result do not
// wait for the task, and their message may be lost. Thread-safe.
class TaskStub {
 public:
  virtual ~TaskStub() = default;

  using OnStatus = absl::AnyInvocable<void(const absl::Status&)>;

  // Returns the incarnation that calls for parts and steps are meant for; 0 for any.
  virtual uint64_t incarnation() const = 0;

  // Parts and steps. See Worker for what each call does on the task.
  virtual void register_part(const Worker::NewPart& part, Time deadline, OnStatus done) = 0;
  virtual void drop_part(uint64_t registration) = 0;
  // `oldest` is the number of the oldest step in flight of the registration.
  virtual void run_part(const StepKey& key, uint64_t oldest, const GraphPart& part,
                        PartInputs inputs, OnPartResult done) = 0;
  virtual void abort_step(const StepKey& key, const std::string& reason) = 0;
  // Calls back with OK if the task answers before the limit, otherwise with an error.
  virtual void check_health(Time limit, OnStatus done) = 0;

  // Sessions and their variables. These calls reach any incarnation of the task.

  // Returns, for each name, true if the scope has the variable. Blocks.
  virtual absl::StatusOr<std::vector<bool>> find_variables(const VariableScope& scope,
                                                           const std::vector<std::string>& names,
                                                           Time deadline) = 0;
  virtual void make_variables(NewVariables variables, Time deadline, OnStatus done) = 0;
  virtual void renew_session(uint64_t session, Duration lease) = 0;
  virtual void end_session(uint64_t session, Time deadline) = 0;
};

}  // namespace trireme::internal
