#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/exec/replay.h"
#include "trireme/ps/ps_step.h"
#include "trireme/ps/ps_variable.h"

namespace trireme::internal {

// One run of a step program: pulls(), run(), then pushes() of every round in turn; results() at any
// time after run(). The caller sends the pulls and pushes. Not thread-safe.
class PsStepRun {
 public:
  // `variables` has an entry for those on servers, `own` a tensor for the others.
  PsStepRun(std::shared_ptr<const PsStep> program, std::vector<std::optional<PsVariable>> variables,
            std::vector<at::Tensor> own, std::vector<at::Tensor> inputs, uint64_t seed,
            uint64_t step);

  absl::StatusOr<std::vector<PsPull>> pulls();
  absl::Status run(std::vector<at::Tensor> pulled, const ReplayOptions& options);
  size_t rounds() const { return program_->rounds.size(); }
  std::vector<PsPush> pushes(size_t round) const;
  std::optional<double> lr(size_t round) const;
  std::vector<at::Tensor> results() const;

 private:
  void gather_rows(const std::vector<PsStep::Push::Rows>& slices, PsPush& made) const;

  const std::shared_ptr<const PsStep> program_;
  const std::vector<std::optional<PsVariable>> variables_;
  std::vector<at::Tensor> contents_;  // of all variables; those of servers are copies
  std::vector<at::Tensor> before_;    // what was pulled of those whose difference is pushed
  std::vector<at::Tensor> inputs_, outputs_;
  std::vector<at::Tensor> row_ids_;
  const uint64_t seed_, step_;
};

}  // namespace trireme::internal
