#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/capture/function_step.h"
#include "trireme/cluster/device_spec.h"

namespace trireme {

namespace internal {

struct VariableRecord;
class WorkerGroup;  // function/worker_values.h

using VariableRecords = std::vector<std::shared_ptr<VariableRecord>>;

// A place outside of the program that holds the contents of variables: a session's tasks or
// parameter servers. All functions throw Error if they fail. Thread-safe.
class VariableHolder {
 public:
  virtual ~VariableHolder() = default;

  // Fetches the contents of a variable.
  virtual at::Tensor read(const VariableRecord& variable) = 0;
  // Assigns `value` to a variable, or adds it.
  enum class Change { kAssign, kAdd };
  virtual void change(const VariableRecord& variable, Change change, const at::Tensor& value) = 0;
};

// Stores variables for as long as they live: on parameter servers (ps/), or on devices of this
// process (function/local_backend.h). Unless that is the program's memory, the program's own tensor
// of such a variable keeps the initial contents.
class VariableBackend : public VariableHolder {
 public:
  // Throws Error if the scopes around a new variable name a device (`backend_device`) on which the
  // backend cannot keep it.
  virtual void check_device(const VariableRecord& variable) const = 0;
  // Takes over a new variable. Its tensor holds the initial contents.
  virtual void adopt(const std::shared_ptr<VariableRecord>& variable) = 0;
  // Returns the devices of the variable's shards, in order.
  virtual std::vector<std::string> devices(const VariableRecord& variable) = 0;

  // Returns true if an optimizer hands its gradients to the backend, with the two functions below.
  // Otherwise its operators are part of the steps, and its state is in variables of the backend.
  virtual bool applies_gradients() const { return true; }
  // Makes `rule` (optim/update_rule.h) the rule that gradients of these variables are applied with.
  virtual void set_optimizer(const VariableRecords& variables, const std::string& rule,
                             const std::map<std::string, double>& options) = 0;
  // Applies one gradient to each variable, at the learning rate `lr`.
  virtual void push_gradients(const VariableRecords& variables,
                              const std::vector<at::Tensor>& gradients, double lr) = 0;

  // Runs a captured step that uses variables of this backend, and returns its results.
  virtual std::vector<at::Tensor> run(const FunctionStep& step, const StepOptions& options) = 0;

  // Returns the workers that each have a copy of the variables and train them together, which live
  // as long as the backend; null if there is only this process.
  virtual WorkerGroup* workers() const { return nullptr; }
};

// Returns the error for a variable that is made in the scope of a device whose task has no
// variables of the backend. `places` says where these are: "the ps tasks".
Error not_on_task(const std::string& variable, const DeviceSpec& device, const std::string& places);
// Warns, once in the process, that variables of a backend are not on the device that a scope names.
void warn_of_unused_device(const DeviceSpec& device, const std::string& places);

// Returns the error for code that uses the program's tensor of a variable that lives elsewhere.
std::string stale_message(const std::string& variable, const std::vector<std::string>& places);

// While it lives, the variables that the calling thread makes are placed in `backend`. Scopes nest.
class BackendScope {
 public:
  explicit BackendScope(std::shared_ptr<VariableBackend> backend);
  ~BackendScope();

  BackendScope(const BackendScope&) = delete;
  BackendScope& operator=(const BackendScope&) = delete;
};

// Returns the backend of the calling thread's innermost scope; null for the program itself.
const std::shared_ptr<VariableBackend>& current_backend();

// Records in the graph of a step under capture that `gradient` goes to the optimizer of `variable`,
// at the learning rate `lr`.
void record_gradient(const at::Tensor& variable, const at::Tensor& gradient, const at::Tensor& lr);

}  // namespace internal
}  // namespace trireme
