#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "trireme/graph/capture_key.h"

namespace trireme::internal {

// Intercepts the operators of a thread before their kernels run. A capture records them; a device
// scope checks where they run.
class OperatorHook {
 public:
  // Returns true for a hook that lets the program compute as it would without it, or rejects an
  // operator. Operators on threads that LibTorch starts for the thread, such as those of a backward
  // pass on an accelerator, then need not pass the hook.
  virtual bool only_checks() const { return false; }

  // Runs the operator and leaves its results on the stack. Throws to reject it.
  virtual void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) = 0;

 protected:
  ~OperatorHook() = default;
};

// Sends the operators of the calling thread to `hook` while the scope lives. With a null hook, they
// go straight to their kernels. Scopes nest. The hook must outlive the scope.
class HookScope {
 public:
  explicit HookScope(OperatorHook* hook);
  ~HookScope();

  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

 private:
  OperatorHook* const outer_;
  const bool outer_included_;
  const bool outer_only_checks_;
};

// Returns the hook of the calling thread's innermost scope; null if there is none.
OperatorHook* current_hook();

// Returns the dispatch keys with which a hook passes an operator on to its kernel.
inline c10::DispatchKeySet keys_below_hook(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCaptureKey);
}

}  // namespace trireme::internal
