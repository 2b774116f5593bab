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

// Runs a step program once. The caller calls pulls(), fetches what it returns, calls run(), and
// then sends pushes() of every round in turn. results() is valid after run(). Makes no calls
// itself, so that blocking and asynchronous callers can both use it. Not thread-safe.
class PsStepRun {
 public:
  // Both lists are parallel to the variables of the plan: `variables` has an entry for each
  // variable on servers, `own` a tensor for each of the others.
  PsStepRun(std::shared_ptr<const PsStep> program, std::vector<std::optional<PsVariable>> variables,
            std::vector<at::Tensor> own, std::vector<at::Tensor> inputs, uint64_t seed,
            uint64_t step);

  // Returns the reads that the step needs. Computes the row ids for them.
  absl::StatusOr<std::vector<PsPull>> pulls();
  // Returns the reads that the next run of the program needs, if they do not depend on its inputs;
  // otherwise none.
  std::vector<PsPull> next_pulls() const;
  // Runs the operators. `pulled` has the results of pulls(), in the same order.
  absl::Status run(std::vector<at::Tensor> pulled, const ReplayOptions& options);
  // Returns the number of pushes that have to be made, one after the other.
  size_t rounds() const { return program_->rounds.size(); }
  // Returns the updates of one round.
  std::vector<PsPush> pushes(size_t round) const;
  // Returns the learning rate of the gradients in a round; nullopt if it has none.
  std::optional<double> lr(size_t round) const;
  // Returns the results of the step.
  std::vector<at::Tensor> results() const;

 private:
  // Returns the reads of the variables that are pulled whole.
  std::vector<PsPull> whole_pulls() const;
  // Fills in the rows and values of a push from the outputs that `slices` names, without padding.
  void gather_rows(const std::vector<PsStep::Push::Rows>& slices, PsPush& made) const;

  const std::shared_ptr<const PsStep> program_;
  const std::vector<std::optional<PsVariable>> variables_;
  std::vector<at::Tensor> contents_;  // contents of each variable; a copy if it is on servers
  std::vector<at::Tensor> before_;    // pulled contents of variables whose difference is pushed
  std::vector<at::Tensor> inputs_, outputs_;
  std::vector<at::Tensor> row_ids_;  // outputs of the plan that computes row ids
  const uint64_t seed_, step_;
};

}  // namespace trireme::internal
