#include "trireme/coordinator/closure_programs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/graph/cutter.h"
#include "trireme/graph/graph_file.h"
#include "trireme/graph/variable_registry.h"

namespace trireme::internal {
namespace {

Error refused(const FunctionStep& step, std::string why) {
  return Error(ErrorCode::kInvalidArgument, std::move(why),
               {"", absl::StrCat("function '", step.function, "'")});
}

}  // namespace

ClosurePtr ClosurePrograms::closure_of(const FunctionStep& step) {
  auto closure = std::make_shared<Closure>();
  closure->program = program_of(step);
  closure->seed = step.seed;
  closure->step = step.step;
  closure->tensors.reserve(step.inputs.size() + closure->program->own.size());
  for (const at::Tensor& input : step.inputs) {
    closure->tensors.push_back(input.defined() ? input.detach() : input);
  }
  for (uint32_t i : closure->program->own) {
    closure->tensors.push_back(step.variables[i]->tensor.detach().clone());
  }
  return closure;
}

std::shared_ptr<const ClosureProgram> ClosurePrograms::program_of(const FunctionStep& step) {
  MutexLock lock(mutex_);
  const auto found = by_plan_.find(step.plan.get());
  if (found != by_plan_.end()) return found->second.second;
  auto made = std::make_shared<ClosureProgram>();
  RegisterProgramRequest request = describe(step, *made);
  std::vector<at::Tensor> constants = constant_rows(*step.plan->graph);
  std::shared_ptr<const ClosureProgram>& program =
      by_content_[content_of(request.SerializeAsString(), constants)];
  if (program == nullptr) {
    made->id = next_id_++;
    request.set_program(made->id);
    made->registration = make_message(request, std::move(constants));
    program = std::move(made);
  }
  by_plan_[step.plan.get()] = {step.plan, program};
  return program;
}

RegisterProgramRequest ClosurePrograms::describe(const FunctionStep& step,
                                                 ClosureProgram& program) const {
  program.function = step.function;
  program.plan = step.plan;
  const auto& def = step.plan->graph->def;
  program.answer_bytes = bytes_of(def, {def.outputs().begin(), def.outputs().end()});
  RegisterProgramRequest request;
  request.set_coordinator(coordinator_);
  *request.mutable_def() = def;
  for (size_t i = 0; i < step.variables.size(); ++i) {
    const VariableRecord& record = *step.variables[i];
    ProgramVariable* variable = request.add_variables();
    variable->set_name(record.name);
    if (record.home == nullptr) {
      if (record.is_remote()) {
        throw refused(step, absl::StrCat("variable '", record.name, "' is on '", record.device,
                                         "', where closures cannot reach it; make it in the "
                                         "strategy's scope"));
      }
      if (step.plan->variable_written[i]) {
        throw refused(step, absl::StrCat("it changes variable '", record.name,
                                         "', which is in the program's own memory, where closures "
                                         "cannot reach it; make it in the strategy's scope"));
      }
      program.own.push_back(static_cast<uint32_t>(i));
      continue;
    }
    if (record.home != home_) {
      throw refused(step, absl::StrCat("variable '", record.name,
                                       "' was made in the scope of another strategy"));
    }
    const VariableLayout layout = home_->at_home(record).layout();
    variable->set_name(layout.name);
    for (const VariableLayout::Shard& shard : layout.shards) {
      ProgramVariable::Shard* added = variable->add_shards();
      added->set_name(shard.name);
      added->set_server(static_cast<uint32_t>(shard.server));
    }
  }
  return request;
}

}  // namespace trireme::internal
