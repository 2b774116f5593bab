#pragma once

#include <memory>

#include "trireme/runtime/master.h"

namespace trireme::internal {

// Runs one step over the parts of a graph: asks each task for its part, gives the master's own part
// what the others made for it, and puts the outputs together. The first error ends the step on all
// tasks. While it takes long, the tasks that have not answered are asked whether they are there.
// Calls back once, after start().
std::shared_ptr<RunningStep> make_master_step(
    std::shared_ptr<MasterGraph> graph, std::shared_ptr<const MasterGraph::Registered> registered,
    std::shared_ptr<Worker> worker, StepInputs inputs, OnStepResult done);

}  // namespace trireme::internal
