#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/function/device_plan.h"

namespace trireme::internal {

// Keeps variables on devices of this process, and runs steps on them, each replica on a device of
// its own. With several devices for variables, each has a copy of every variable, and all copies
// change together. Thread-safe, like the program's own variables: steps that run at the same time
// on the same variables are not kept apart.
//
// Variables on the CPU are in the program's own tensors, whichever logical device they are on.
class LocalBackend final : public VariableBackend {
 public:
  // `replicas` has the device of each replica, `variables` the devices that hold the variables.
  LocalBackend(std::vector<DeviceSpec> replicas, std::vector<DeviceSpec> variables);

  int replicas() const { return static_cast<int>(replica_devices_.size()); }

  void adopt(const std::shared_ptr<VariableRecord>& variable) override;
  std::vector<std::string> devices(const VariableRecord& variable) override;
  at::Tensor read(const VariableRecord& variable) override;
  void change(const VariableRecord& variable, Change change, const at::Tensor& value) override;
  bool applies_gradients() const override { return false; }
  void set_optimizer(const VariableRecords& variables, const std::string& rule,
                     const std::map<std::string, double>& options) override;
  void push_gradients(const VariableRecords& variables, const std::vector<at::Tensor>& gradients,
                      double lr) override;
  std::vector<at::Tensor> run(const FunctionStep& step, const StepOptions& options) override;

 private:
  // A plan that was run before.
  struct Prepared {
    std::weak_ptr<const Plan> captured;
    std::shared_ptr<const DevicePlan> devices;  // null if the captured plan runs as it is
    BranchTuner tuner;
  };

  std::shared_ptr<Prepared> prepare(const FunctionStep& step);
  // Returns the contents of a variable on each device that holds it. The first call for a variable
  // makes them, from the program's tensor.
  std::vector<at::Tensor> copies_of(const VariableRecord& variable);

  const std::vector<std::string> names_;  // names of the devices that hold the variables
  std::vector<c10::Device> replica_devices_, variable_devices_;  // the latter without repetitions
  Mutex mutex_;
  std::map<const Plan*, std::shared_ptr<Prepared>> prepared_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
