#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"

namespace trireme {

// A variable that lives on a server. Whoever reads its contents holds the mutex for reading,
// whoever changes them for writing; the tensor itself, its memory and its shape never change.
struct HostedVariable {
  HostedVariable(std::string name, at::Tensor tensor)
      : name(std::move(name)), tensor(std::move(tensor)) {}
  virtual ~HostedVariable() = default;  // a host may keep more with it

  const std::string name;
  SharedMutex mutex;
  const at::Tensor tensor;
};

// Where the parts of graphs that run on a task find the variables that live there. Variables are
// named within a container: a session's own, which goes with it, or one that a job shares. The
// module that keeps them (ps/) gives a server its host. Thread-safe.
class VariableHost {
 public:
  virtual ~VariableHost() = default;

  // NOT_FOUND, which names the variable and the container, if there is none.
  virtual absl::StatusOr<std::shared_ptr<HostedVariable>> find(const std::string& container,
                                                               const std::string& name) = 0;
  // Makes a variable with a copy of these contents, or finds the one that is there: the first to
  // come initialises. An error if that one has another shape or dtype.
  virtual absl::StatusOr<std::shared_ptr<HostedVariable>> create(const std::string& container,
                                                                 const std::string& name,
                                                                 const at::Tensor& initial) = 0;
  // Forgets all variables of a container. Who still uses one keeps it until then.
  virtual void drop_container(const std::string& container) = 0;
};

}  // namespace trireme
