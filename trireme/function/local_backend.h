#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/function/device_plan.h"
#include "trireme/function/worker_values.h"

namespace trireme::internal {

// Keeps variables on devices of this process, and runs steps on them, each replica on a device of
// its own. With several devices for variables, each has a copy of every variable, and all copies
// change together. Thread-safe, like the program's own variables: steps that run at the same time
// on the same variables are not kept apart.
//
// Variables on the CPU are in the program's own tensors, whichever logical device they are on.
//
// With several workers, every worker has all variables. A new variable gets the value that worker 0
// gave it. Steps combine gradients over the workers, so that all make the same updates; a variable
// that replicas write to, such as a statistic of batch norm, is the mean over the workers
// afterwards. It must be one of the backend.
class LocalBackend final : public VariableBackend {
 public:
  // `replicas` has the device of each replica, `variables` the devices that hold the variables.
  // `workers` are the workers that train together; null if there is only this process.
  LocalBackend(std::vector<DeviceSpec> replicas, std::vector<DeviceSpec> variables,
               std::shared_ptr<WorkerGroup> workers = nullptr);

  int replicas() const { return static_cast<int>(replica_devices_.size()); }

  void check_device(const VariableRecord& variable) const override;
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
  WorkerGroup* workers() const override { return workers_.get(); }

 private:
  // A plan that was run before.
  struct Prepared {
    std::weak_ptr<const Plan> captured;
    std::shared_ptr<const DevicePlan> devices;  // null if the captured plan runs as it is
    BranchTuner tuner;
    std::vector<size_t> averaged;  // variables of the step that its replicas write to
    bool combines = false;         // true if the step combines values of the workers
  };

  // The variables that the workers average after the steps of a function.
  struct Agreed {
    std::vector<std::weak_ptr<VariableRecord>> used;  // variables of the function's first step
    std::vector<std::weak_ptr<VariableRecord>> averaged;
  };

  std::shared_ptr<Prepared> prepare(const FunctionStep& step);
  // Returns the contents of a variable on each device that holds it. The first call for a variable
  // makes them, from the program's tensor.
  std::vector<at::Tensor> copies_of(const VariableRecord& variable);
  // Makes the plan of a step that the workers share.
  std::shared_ptr<const DevicePlan> plan_for_workers(const FunctionStep& step,
                                                     const DeviceGraphOptions& options) const;
  std::vector<at::Tensor> run_here(const FunctionStep& step, const StepOptions& options);
  // Returns the variables to average after a step, in the order in which they were made.
  VariableRecords averaged_after(const FunctionStep& step, const Prepared& prepared);
  // Returns the variables that the replicas of some worker write to in a function. At its first
  // step, all workers tell each other which variables these are: `own` for this worker.
  VariableRecords agreed_for(const FunctionStep& step, const VariableRecords& own);
  // Gives each of the variables the mean of its values on all workers.
  void average(const std::vector<std::shared_ptr<VariableRecord>>& variables);

  const std::shared_ptr<WorkerGroup> workers_;  // null if there is only this process
  const std::vector<std::string> names_;        // names of the devices that hold the variables
  std::vector<c10::Device> replica_devices_, variable_devices_;  // the latter without repetitions
  Mutex mutex_;
  std::map<const Plan*, std::shared_ptr<Prepared>> prepared_ ABSL_GUARDED_BY(mutex_);
  // Variables by number, if there are workers. All workers make the same ones in the same order.
  std::map<int64_t, std::weak_ptr<VariableRecord>> variables_ ABSL_GUARDED_BY(mutex_);
  int64_t next_variable_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Agreed> agreed_ ABSL_GUARDED_BY(mutex_);  // by function
};

}  // namespace trireme::internal
