#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "trireme/base/mutex.h"
#include "trireme/capture/function_step.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"

namespace trireme::internal {

// Keeps the variables that a session has created on its tasks or has found there. The session is a
// holder of each of them (variable_holders.h) until release(). Thread-safe. Makes no calls.
class SessionVariables {
 public:
  // `session` names the session in errors: "the session at grpc://HOST:PORT". `container` names the
  // shared container of its variables, with its job; empty for one of its own.
  SessionVariables(std::string session, std::string container);

  // Notes that the container has a variable on `task`. `session` becomes a holder of it, unless
  // release() was called.
  void hold(const std::shared_ptr<VariableRecord>& variable,
            const std::shared_ptr<VariableHolder>& session, const std::string& task,
            uint64_t incarnation);
  // Returns true if the session has seen the variable to exist, and forget() was not called since.
  bool has_seen(const VariableRecord& variable) const;
  // Returns true if the session's own container has another variable with the same name, which is
  // gone from the program.
  bool is_name_taken(const VariableRecord& variable) const;
  // Allows the session to create the variable again.
  void forget(const VariableRecord& variable);
  // Ends the role of `session` as a holder of its variables. Called when the session is closed.
  void release(const VariableHolder& session);

  // Returns a step that fetches the contents of a variable from its task. Throws Error if the
  // session does not hold it.
  FunctionStep read_step(const VariableRecord& variable);
  // Returns a step that changes a variable on its task, under the rules of read_step().
  FunctionStep change_step(const VariableRecord& variable, VariableHolder::Change change,
                           const at::Tensor& value);

 private:
  struct Held {
    std::weak_ptr<VariableRecord> record;
    std::string task;  // task that has the contents
    uint64_t incarnation = 0;
    // Graphs of the steps that were asked for, by operator and dtype of the value.
    std::map<std::pair<std::string, at::ScalarType>, std::shared_ptr<const Plan>> plans;
  };
  FunctionStep make_step(const VariableRecord& variable, const std::string& op,
                         const at::Tensor& value);

  const std::string session_;
  const std::string container_;
  mutable Mutex mutex_;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  // Variables that were seen to exist, by name.
  std::map<std::string, std::weak_ptr<VariableRecord>> seen_ ABSL_GUARDED_BY(mutex_);
  std::map<const VariableRecord*, Held> held_ ABSL_GUARDED_BY(mutex_);
};

// Warns if another session holds a variable that this one is about to create.
void warn_of_other_holder(const VariableRecord& variable);

}  // namespace trireme::internal
