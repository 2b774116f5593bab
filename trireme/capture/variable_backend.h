#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/capture/function_step.h"

namespace trireme {

namespace internal {

struct VariableRecord;

using VariableRecords = std::vector<std::shared_ptr<VariableRecord>>;

// Where variables live that are neither in the program's memory nor on one device: parameter
// servers (ps/). What the program holds of such a variable is what it started from. Errors are
// thrown. Thread-safe.
class VariableBackend {
 public:
  virtual ~VariableBackend() = default;

  // A variable was made that lives here, beginning with what its tensor holds.
  virtual void adopt(const std::shared_ptr<VariableRecord>& variable) = 0;
  // The tasks of its shards, in order.
  virtual std::vector<std::string> devices(const VariableRecord& variable) = 0;

  virtual at::Tensor read(const VariableRecord& variable) = 0;
  enum class Change { kAssign, kAdd };
  virtual void change(const VariableRecord& variable, Change change, const at::Tensor& value) = 0;

  // Gradients of these are for this rule (optim/update_rule.h) from now on.
  virtual void set_optimizer(const VariableRecords& variables, const std::string& rule,
                             const std::map<std::string, double>& options) = 0;
  virtual void push_gradients(const VariableRecords& variables,
                              const std::vector<at::Tensor>& gradients, double lr) = 0;

  // Runs a captured step some of whose variables live here.
  virtual std::vector<at::Tensor> run(const FunctionStep& step, const StepOptions& options) = 0;
};

// Variables that its thread makes inside of it live there.
class BackendScope {
 public:
  explicit BackendScope(std::shared_ptr<VariableBackend> backend);
  ~BackendScope();

  BackendScope(const BackendScope&) = delete;
  BackendScope& operator=(const BackendScope&) = delete;
};

// Of the innermost scope; null: the program itself.
const std::shared_ptr<VariableBackend>& current_backend();

// In a captured step: the gradient is for the variable's optimizer, at this learning rate.
void record_gradient(const at::Tensor& variable, const at::Tensor& gradient, const at::Tensor& lr);

}  // namespace internal
}  // namespace trireme
