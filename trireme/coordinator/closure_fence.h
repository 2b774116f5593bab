#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace trireme::internal {

// Keeps late updates of closures away from variables. A worker that is frozen or cut off may still
// run a closure that the coordinator has given up on, and push its updates later. Thread-safe.
class ClosureFence {
 public:
  virtual ~ClosureFence() = default;

  // Called when a fence is complete. `unconfirmed` is empty if every server that is not lost has
  // confirmed that it applies none of the updates. Otherwise it has the tasks of servers that did
  // not answer, and where the lease of the updates has run out instead: such a server begins none
  // of them any more, but if it was stopped while it applied one, it completes that one when it
  // runs on.
  using OnComplete = absl::AnyInvocable<void(const std::vector<std::string>& unconfirmed)>;

  // Calls `done` once, as soon as no update of a closure with a sequence below `below` will be
  // begun on any parameter server, and none is being applied on a server that answers. Does not
  // block. May call `done` before it returns.
  virtual void raise(uint64_t below, OnComplete done) = 0;
  // Returns the tasks of the servers that fences under way wait for.
  virtual std::vector<std::string> awaited() const = 0;
  // Notes that a task is lost. If it is a parameter server, its variables are lost too, so fences
  // do not wait for it.
  virtual void note_lost(const std::string& task) = 0;
};

}  // namespace trireme::internal
