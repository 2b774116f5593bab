#include "trireme/runtime/checked_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <mutex>

#include "trireme/base/logging.h"

namespace trireme::internal {
namespace {

std::vector<Variable> handles_of(const CheckedVariables& records) {
  std::vector<Variable> variables;
  for (const auto& record : records) variables.push_back(Access<Variable>::make(record));
  return variables;
}

}  // namespace

ProgramTensorsScope::ProgramTensorsScope(const CheckedVariables& variables)
    : variables_(variables) {
  for (const auto& variable : variables_) variable->holders.suspend();
}

ProgramTensorsScope::~ProgramTensorsScope() {
  for (const auto& variable : variables_) variable->holders.resume();
}

ProgramState::ProgramState(const CheckedVariables& variables)
    : variables_(variables), contents_(read()) {
  for (const auto& variable : variables_) {
    const at::Tensor gradient = variable->tensor.grad();
    gradients_.emplace_back(gradient, gradient.defined() ? gradient.detach().clone() : gradient);
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator_ = generator.get_state();
}

ProgramState::~ProgramState() {
  try {
    restore();
  } catch (const std::exception& error) {
    log_warning("check() could not restore the state of the program: ", error.what());
  }
}

Contents ProgramState::read() const {
  const ProgramTensorsScope program(variables_);
  Contents contents;
  for (const auto& variable : variables_) contents.push_back(variable->tensor.detach().clone());
  return contents;
}

void ProgramState::write(const Contents& contents) const {
  const ProgramTensorsScope program(variables_);
  const at::NoGradGuard no_gradients;
  for (size_t i = 0; i < variables_.size(); ++i) variables_[i]->tensor.copy_(contents[i]);
}

void ProgramState::restore() {
  write(contents_);
  const at::NoGradGuard no_gradients;
  for (size_t i = 0; i < variables_.size(); ++i) {
    // backward() adds to a gradient in place, so the tensor and its contents are put back.
    auto& [gradient, contents] = gradients_[i];
    if (gradient.defined()) gradient.copy_(contents);
    variables_[i]->tensor.mutable_grad() = gradient;
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(generator_);
}

SessionState::SessionState(Session& session, const CheckedVariables& variables)
    : session_(session),
      variables_(handles_of(variables)),
      read_(function("check.read",
                     [all = variables_] {
                       Contents contents;
                       for (const Variable& variable : all) {
                         contents.push_back(variable.read().detach().clone());
                       }
                       return contents;
                     },
                     {.check_capture = false})),
      write_(function("check.write",
                      [all = variables_](const Contents& contents) {
                        for (size_t i = 0; i < all.size(); ++i) all[i].assign(contents[i]);
                      },
                      {.check_capture = false})),
      contents_(read()) {}

SessionState::~SessionState() {
  if (variables_.empty()) return;
  try {
    session_.run(write_, contents_);
  } catch (const std::exception& error) {
    log_warning("check() could not restore the variables of the session: ", error.what());
  }
}

Contents SessionState::read() const {
  return variables_.empty() ? Contents() : session_.run(read_);
}

}  // namespace trireme::internal
