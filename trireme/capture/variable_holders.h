#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/mutex.h"

namespace trireme::internal {

class VariableHolder;

// A copy of a variable's contents that a session keeps on one of its tasks.
struct HeldCopy {
  std::weak_ptr<VariableHolder> holder;  // the session
  std::string session;                   // name of the session: "the session at grpc://HOST:PORT"
  std::string container;                 // container that outlives the session; empty for its own
  std::string task;                      // task that has the contents
  uint64_t incarnation = 0;              // incarnation of the task
  bool open = true;                      // false once the session is closed
};

// The sessions that hold the contents of one variable. While there is one, the tensor in the
// program is stale, and its memory is locked (memory_lock.h) if it is dense and on the CPU: code
// that reads or writes it gets an error instead of old numbers.
//
// A closed session leaves no copy in its own container, so the program's tensor counts again after
// the last of them. A shared container outlives its sessions: the copy stays in the list, and the
// tensor stays locked.
//
// Thread-safe, but the tensor must not be in use on another thread when the first session is added
// or the last one removed. Calls no function of a session.
class VariableHolders {
 public:
  // Adds a session's copy of the variable `name` and locks the program's `tensor`. Replaces what
  // was known about the same session, or about the same copy in a shared container.
  void add(const std::string& name, const at::Tensor& tensor, HeldCopy copy);
  // Removes a session that is being closed.
  void remove(const VariableHolder& session);

  // Returns the open session to read and change the variable with; null if the program's tensor has
  // the contents. Throws Error, which names the variable, if open sessions hold different copies,
  // or if the only copies are in containers that no open session uses.
  std::shared_ptr<VariableHolder> find() const;
  // Names the sessions or containers that hold the contents: "the session at grpc://HOST:PORT, on
  // /job:worker/task:0". Returns an empty string if the program's tensor has them.
  std::string describe() const;

  // Makes the program's tensor count, as if no session held the variable, until resume() is called.
  // Calls nest. For check(), which runs a step of a session as eager code too.
  void suspend();
  void resume();

 private:
  std::string describe_copies() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void update_lock() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // True if `copies_` is not empty and `suspended_` is 0. Spares most calls the mutex.
  std::atomic<bool> held_ = false;
  mutable Mutex mutex_;
  int suspended_ ABSL_GUARDED_BY(mutex_) = 0;  // number of suspend() calls without a resume()
  std::string name_ ABSL_GUARDED_BY(mutex_);   // name of the variable, for messages
  std::vector<HeldCopy> copies_ ABSL_GUARDED_BY(mutex_);
  c10::Storage storage_ ABSL_GUARDED_BY(mutex_);      // memory to lock; null for none
  std::string lock_message_ ABSL_GUARDED_BY(mutex_);  // message of the lock; empty if it is open
};

// Returns the contents that the program holds, even if the memory is locked. The result shares the
// memory of `tensor`.
at::Tensor program_contents(const at::Tensor& tensor);

}  // namespace trireme::internal
