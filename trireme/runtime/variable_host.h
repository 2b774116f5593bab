#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"

namespace trireme {

// A variable that lives on a server. Readers of its contents hold the mutex for reading, writers
// for writing. The tensor object, its memory and its shape never change.
struct HostedVariable {
  HostedVariable(std::string name, at::Tensor tensor)
      : name(std::move(name)), tensor(std::move(tensor)) {}
  virtual ~HostedVariable() = default;  // hosts derive from it to keep more with a variable

  const std::string name;
  SharedMutex mutex;
  const at::Tensor tensor;
};

// Keeps the variables of a task, for the parts of graphs that run on it. Variables have names
// within a container: a session's own, which is deleted with it, or one that the sessions of a job
// share. The module ps/ implements it and sets it in TaskContext::variables. Thread-safe.
class VariableHost {
 public:
  virtual ~VariableHost() = default;

  // Returns NOT_FOUND, naming the variable and the container, if there is no such variable.
  virtual absl::StatusOr<std::shared_ptr<HostedVariable>> find(const std::string& container,
                                                               const std::string& name) = 0;
  // Creates a variable with a copy of `initial`, or returns the existing one unchanged: the first
  // caller initialises. Returns an error if the existing one has another shape or dtype.
  virtual absl::StatusOr<std::shared_ptr<HostedVariable>> create(const std::string& container,
                                                                 const std::string& name,
                                                                 const at::Tensor& initial) = 0;
  // Forgets all variables of a container. A variable lives on while a caller of find() holds it.
  virtual void drop_container(const std::string& container) = 0;
};

}  // namespace trireme
