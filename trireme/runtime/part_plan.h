#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// Returns the hardware of this process behind the device of a variable, for example
// "/job:worker/task:0/gpu:1". An empty name is the CPU. The error for a name that is not valid
// names the variable.
absl::StatusOr<c10::Device> device_of_variable(const std::string& variable,
                                               const std::string& device);

// The plan of a part of a placed graph for the hardware of this task. It depends on the devices
// that hold the part's variables. These need not be the ones that the graph names, because the
// graph that creates a variable decides its device. Thread-safe.
class PartPlan {
 public:
  // Makes the plan for variables on the devices that the graph names. Returns an error if the graph
  // cannot be assigned to devices.
  static absl::StatusOr<std::unique_ptr<PartPlan>> make(std::shared_ptr<const GraphData> placed);

  // Returns the part as it was placed. Its receives, sends and variables are those of all plans.
  const Plan& placed() const { return *placed_; }
  // Returns the plan for variables on these devices.
  absl::StatusOr<std::shared_ptr<const Plan>> with_variables_on(
      const std::vector<c10::Device>& devices);

 private:
  explicit PartPlan(std::shared_ptr<const Plan> placed);

  const std::shared_ptr<const Plan> placed_;
  const bool has_accelerator_;  // false if everything of this process is on the CPU
  Mutex mutex_;
  // The plan that was used last, and the devices of its variables.
  std::shared_ptr<const Plan> last_ ABSL_GUARDED_BY(mutex_);
  std::vector<c10::Device> last_devices_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
