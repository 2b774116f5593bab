#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"

namespace trireme {

// A variable that lives on a server. Readers of its contents hold the mutex for reading, writers
// for writing: pushes as well as operators of sessions. The tensor object, its memory and its shape
// never change.
struct HostedVariable {
  HostedVariable(std::string name, at::Tensor tensor)
      : name(std::move(name)), tensor(std::move(tensor)) {}
  virtual ~HostedVariable() = default;  // hosts derive from it to keep more with a variable

  // Returns the version of the contents, which rises with every change. The caller holds the mutex.
  // Taking the mutex for writing takes the next version, so no writer can forget to
  // (docs/decisions/versions.md).
  uint64_t version() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return mutex.writes(); }

  // Called by writers that hold the mutex, before they change the contents. A host may copy them
  // first, for a save that is under way.
  virtual void before_change() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {}

  const std::string name;
  SharedMutex mutex;
  const at::Tensor tensor;
};

// The names of variables on a server: a container of one generation of a job. The variables of a
// session's own container belong to no job.
struct VariableScope {
  VariableScope() = default;
  // Makes the scope of a container that belongs to no job.
  VariableScope(std::string container) : container(std::move(container)) {}  // NOLINT: implicit
  VariableScope(const char* container) : container(container) {}             // NOLINT: implicit
  VariableScope(std::string job, uint64_t generation, std::string container)
      : job(std::move(job)), generation(generation), container(std::move(container)) {}

  std::string job;          // id of the job; empty for none
  uint64_t generation = 0;  // generation of the job
  std::string container;
};

// Keeps the variables of a task, for the parts of graphs that run on it. Variables have names
// within a container: a session's own, which is deleted with it, or one that the sessions of a job
// share. The module ps/ implements it and sets it in TaskContext::variables. Thread-safe.
class VariableHost {
 public:
  virtual ~VariableHost() = default;

  // Returns NOT_FOUND, naming the variable and the container, if there is no such variable. This
  // and create() return ABORTED if the scope's generation is not the current one of its job.
  virtual absl::StatusOr<std::shared_ptr<HostedVariable>> find(const VariableScope& scope,
                                                               const std::string& name) = 0;
  // Creates a variable on `device` with a copy of `initial`, or returns the existing one unchanged:
  // the first caller initialises and decides the device. Returns an error if the existing one has
  // another shape or dtype.
  virtual absl::StatusOr<std::shared_ptr<HostedVariable>> create(
      const VariableScope& scope, const std::string& name, const at::Tensor& initial,
      c10::Device device = c10::kCPU) = 0;
  // Returns OK if the scope's generation is the current one of its job, otherwise ABORTED. May be
  // called with the lock of a variable held.
  virtual absl::Status check(const VariableScope& scope) const = 0;
  // Forgets all variables of a container. A variable lives on while a caller of find() holds it.
  virtual void drop_container(const VariableScope& scope) = 0;
};

}  // namespace trireme
