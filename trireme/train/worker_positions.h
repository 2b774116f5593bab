#pragma once

#include <string>
#include <vector>

#include "trireme/checkpoint/saved_state.h"
#include "trireme/train/checkpoint_objects.h"
#include "trireme/train/worker_agreement.h"

namespace trireme::internal {

// Returns the positions of all workers in each iterator. Empty if this process is alone. No element
// may be drawn meanwhile. Throws Error, on all workers, if a position cannot be read.
std::vector<std::vector<SavedPosition>> positions_of_workers(const WorkerAgreement& agreement,
                                                             const CheckpointObjects& objects);

// Returns the names that the variables have on worker 0, which are those in its checkpoints.
// Throws Error, on all workers, if the workers have different numbers of variables.
std::vector<std::string> names_of_chief(const WorkerAgreement& agreement,
                                        const CheckpointObjects& objects);

}  // namespace trireme::internal
