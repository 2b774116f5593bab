#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/ps/layout.h"
#include "trireme/ps/ps_client.h"
#include "trireme/ps/ps_step.h"

namespace trireme::internal {

// The variables of a program that live on parameter servers. They are made there when one is first
// used, all that there are by then at once: so they can be balanced.
class ParameterServerBackend final : public VariableBackend {
 public:
  ParameterServerBackend(std::unique_ptr<PsClient> client, ShardPlacer placer);
  ~ParameterServerBackend() override;

  void adopt(const std::shared_ptr<VariableRecord>& variable) override;
  std::vector<std::string> devices(const VariableRecord& variable) override;
  at::Tensor read(const VariableRecord& variable) override;
  void change(const VariableRecord& variable, Change change, const at::Tensor& value) override;
  void set_optimizer(const VariableRecords& variables, const std::string& rule,
                     const std::map<std::string, double>& options) override;
  void push_gradients(const VariableRecords& variables, const std::vector<at::Tensor>& gradients,
                      double lr) override;
  std::vector<at::Tensor> run(const FunctionStep& step, const StepOptions& options) override;

  PsClient& client() { return *client_; }
  // Where a variable is on the servers.
  PsVariable ps_variable(const VariableRecord& variable);

 private:
  void make_new_ones();
  uint64_t begin_sequence();
  void end_sequence(uint64_t sequence);
  uint64_t watermark();
  std::shared_ptr<const PsStep> program_of(const FunctionStep& step,
                                           const std::vector<bool>& on_servers);

  const std::unique_ptr<PsClient> client_;
  const uint64_t writer_;  // of this program's pushes

  Mutex making_;  // held while variables are made
  ShardPlacer placer_ ABSL_GUARDED_BY(making_);
  std::vector<std::weak_ptr<VariableRecord>> new_ ABSL_GUARDED_BY(making_);

  Mutex mutex_;
  struct Known {
    std::weak_ptr<const Plan> plan;
    std::shared_ptr<const PsStep> program;
  };
  std::unordered_map<const Plan*, Known> programs_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  std::set<uint64_t> under_way_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
