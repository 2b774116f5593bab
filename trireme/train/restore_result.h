#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/error.h"
#include "trireme/train/worker_agreement.h"

namespace trireme::internal {

// Ways in which the files of a checkpoint can make a restore fail.
enum class Damage {
  kNone,
  kDamaged,
  kUnreadable,  // The disk has failed, which may pass.
};

// Result of a restore: the step, or an error.
struct RestoreResult {
  absl::StatusOr<int64_t> step;
  Damage damage = Damage::kNone;
};

// Input that every worker reads for itself, as error messages describe it.
struct SharedInput {
  std::string verb;  // "restore"
  std::string noun;  // "checkpoint"
  std::string path;
  std::string remedy;  // A sentence in the imperative, without a full stop.
};

// Returns OK if all workers have read the same as worker 0, and otherwise an error that names the
// first of the others. `results` has a text by worker that identifies the input. Worker 0 must have
// one.
absl::Status check_same_input(const std::vector<absl::StatusOr<std::string>>& results,
                              const SharedInput& input);

// Returns the result of all workers: that of worker 0, or an error that names another worker, which
// could not do the same. `id` is the identity of the checkpoint that this worker has read.
RestoreResult agree_on_restore(const WorkerAgreement& agreement, const RestoreResult& mine,
                               const std::string& id, const std::string& path);

// Returns the error for a folder of which no checkpoint can be restored. `damages` has the errors
// of all of them, some of which are kUnreadable if `unreadable`.
Error unusable_folder(const std::string& folder, const std::vector<std::string>& damages,
                      bool unreadable);

}  // namespace trireme::internal
