#include "trireme/function/replay_step.h"

#include <fstream>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/exec/operator_trace.h"
#include "trireme/exec/step_generator.h"

namespace trireme::internal {

std::vector<at::Tensor> replay_step(const StepCall& call, const Plan& plan,
                                    const std::vector<at::Tensor>& variables,
                                    const StepOptions& options, ReplayOptions how) {
  at::Generator generator;
  if (plan.graph->def.random()) generator = make_step_generator(call.seed, call.step);
  OperatorTrace trace;
  how.stop = options.stop;
  how.pooled = true;
  how.trusted = true;  // captured in this process
  how.check_numerics = options.check_numerics;
  if (!options.trace_file.empty()) how.trace = &trace;
  // Counted before the first write, so that a capture on another thread does not take it for a
  // hidden write of its own step.
  for (size_t i = 0; i < call.variables.size(); ++i) {
    if (call.captured.variable_written[i]) ++call.variables[i]->replays;
  }
  std::vector<at::Tensor> outputs =
      value_or_throw(replay(plan, call.inputs, variables, std::move(generator), how));
  if (how.trace != nullptr) std::ofstream(options.trace_file) << trace.chrome_json();
  return outputs;
}

}  // namespace trireme::internal
