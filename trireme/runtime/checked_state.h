#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "trireme/capture/variable_registry.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/runtime/session.h"

// The state that steps change. check() saves it, moves it between its two sides, and restores it.
// Not thread-safe: no other thread may use the variables.
namespace trireme::internal {

// Contents of variables, in the order of the list that they belong to.
using Contents = std::vector<at::Tensor>;
using CheckedVariables = std::vector<std::shared_ptr<VariableRecord>>;

// Makes the program's tensors of variables count while it lives, whatever session holds their
// contents. The list must outlive it.
class ProgramTensorsScope {
 public:
  explicit ProgramTensorsScope(const CheckedVariables& variables);
  ~ProgramTensorsScope();

  ProgramTensorsScope(const ProgramTensorsScope&) = delete;
  ProgramTensorsScope& operator=(const ProgramTensorsScope&) = delete;

 private:
  const CheckedVariables& variables_;
};

// The state of the program: contents and gradients of variables, and LibTorch's default generator.
// Restores it when it is destroyed. The list of variables must outlive it.
class ProgramState {
 public:
  explicit ProgramState(const CheckedVariables& variables);
  ~ProgramState();

  ProgramState(const ProgramState&) = delete;
  ProgramState& operator=(const ProgramState&) = delete;

  // Returns copies of the contents of the variables.
  Contents read() const;
  // Puts contents into the variables.
  void write(const Contents& contents) const;

 private:
  void restore();

  const CheckedVariables& variables_;
  const Contents contents_;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // the tensors and their contents
  at::Tensor generator_;                                      // state of the generator
};

// The contents that variables have in a session. Restores them when it is destroyed. Creates the
// variables that the session does not hold yet. The session must outlive it.
class SessionState {
 public:
  SessionState(Session& session, const CheckedVariables& variables);
  ~SessionState();

  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;

  // Returns the contents from the time when the object was made.
  const Contents& initial() const { return contents_; }
  // Returns the contents.
  Contents read() const;

 private:
  Session& session_;
  const std::vector<Variable> variables_;
  // Steps that read and write all variables at once.
  const Function<Contents()> read_;
  const Function<void(const Contents&)> write_;
  const Contents contents_;
};

}  // namespace trireme::internal
