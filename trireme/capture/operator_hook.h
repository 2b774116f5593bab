#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "trireme/graph/capture_key.h"

namespace trireme::internal {

// Gets the operators of a thread before their kernels: a capture records them, a device scope
// refuses those that would run in the wrong place.
class OperatorHook {
 public:
  // Runs the operator, leaving its results on the stack.
  virtual void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) = 0;

 protected:
  ~OperatorHook() = default;
};

// The operators of its thread go to this hook while it lives; null: to none. Scopes nest.
class HookScope {
 public:
  explicit HookScope(OperatorHook* hook);
  ~HookScope();

  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

 private:
  OperatorHook* const outer_;
  const bool outer_included_;
};

// The hook of the calling thread's innermost scope; null if there is none.
OperatorHook* current_hook();

// With these an operator that came to a hook is passed on to its kernel.
inline c10::DispatchKeySet keys_below_hook(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCaptureKey);
}

}  // namespace trireme::internal
