#pragma once

#include <memory>

#include "trireme/distribute/step_runner.h"

namespace trireme::internal {

// Returns a runner that runs steps of `replicas` replicas in this process, on the calling thread.
std::shared_ptr<StepRunner> make_program_runner(int replicas);

}  // namespace trireme::internal
