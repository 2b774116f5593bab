#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/rpc/channel.h"
#include "trireme/runtime/health_checker.h"
#include "trireme/runtime/task_stub.h"

namespace trireme::internal {

// Stub of another task of the cluster. Calls its worker by RPC; errors name the task. Thread-safe.
// May be destroyed while calls are in flight.
class RemoteTask final : public TaskStub {
 public:
  // With incarnation 0, calls for parts and steps reach any incarnation of the task.
  RemoteTask(std::shared_ptr<Channel> channel, uint64_t incarnation,
             std::shared_ptr<HealthChecker> health_checker);

  uint64_t incarnation() const override { return incarnation_; }

  void register_part(const Worker::NewPart& part, Time deadline, OnStatus done) override;
  void drop_part(uint64_t registration) override;
  void run_part(const StepKey& key, uint64_t oldest, const GraphPart& part, PartInputs inputs,
                OnPartResult done) override;
  void abort_step(const StepKey& key, const std::string& reason) override;
  void check_health(Time limit, OnStatus done) override;

  absl::StatusOr<std::vector<bool>> find_variables(const VariableScope& scope,
                                                   const std::vector<std::string>& names,
                                                   Time deadline) override;
  void make_variables(NewVariables variables, Time deadline, OnStatus done) override;
  void renew_session(uint64_t session, Duration lease) override;
  void end_session(uint64_t session, Time deadline) override;

 private:
  const std::shared_ptr<Channel> channel_;
  const uint64_t incarnation_;
  const std::shared_ptr<HealthChecker> health_checker_;
};

}  // namespace trireme::internal
