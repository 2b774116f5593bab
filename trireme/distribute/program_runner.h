#pragma once

#include <memory>

#include "trireme/distribute/step_runner.h"
#include "trireme/function/worker_values.h"

namespace trireme::internal {

// Returns a runner that runs steps of `replicas` replicas in this process, on the calling thread.
// `workers` are the workers that train together, each with such a runner; null if there is only
// this process.
std::shared_ptr<StepRunner> make_program_runner(int replicas,
                                                std::shared_ptr<WorkerGroup> workers = nullptr);

}  // namespace trireme::internal
