#pragma once

#include <memory>
#include <optional>

#include "trireme/collective/communicator.h"
#include "trireme/collective/reduction_buckets.h"
#include "trireme/collective/step_reductions.h"
#include "trireme/function/worker_values.h"

namespace trireme::internal {

// The ranks of a communicator as workers that train together. Thread-safe, like the communicator.
class CommunicatorWorkers final : public WorkerGroup {
 public:
  // `wire_dtype` is the dtype of gradients on their way; nullopt for their own.
  explicit CommunicatorWorkers(std::shared_ptr<Communicator> communicator,
                               std::optional<c10::ScalarType> wire_dtype = std::nullopt);

  int workers() const override { return communicator_->size(); }
  int worker() const override { return communicator_->rank(); }
  at::Tensor sum(const at::Tensor& value, const std::string& tag) override;
  at::Tensor first(const at::Tensor& value, const std::string& tag) override;
  at::Tensor concatenate(const at::Tensor& value, const std::string& tag) override;
  std::shared_ptr<const GraphData> connect(const Plan& plan) override;
  void fail(const std::string& message) override;

 private:
  const std::shared_ptr<Communicator> communicator_;
  const StepCommunicator steps_;
  const ReductionOptions options_;
};

}  // namespace trireme::internal
