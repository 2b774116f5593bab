#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/runtime/task_stub.h"
#include "trireme/runtime/worker.h"

namespace trireme::internal {

// Stub of the master's own task. Calls the worker of the same server directly. Thread-safe.
class LocalTask final : public TaskStub {
 public:
  LocalTask(std::shared_ptr<Worker> worker, uint64_t incarnation);

  uint64_t incarnation() const override { return incarnation_; }

  void register_part(const Worker::NewPart& part, Time deadline, OnStatus done) override;
  void drop_part(uint64_t registration) override;
  // May run the part on the calling thread.
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
  const std::shared_ptr<Worker> worker_;
  const uint64_t incarnation_;
};

}  // namespace trireme::internal
