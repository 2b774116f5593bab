// How operators get to a hook. LibTorch dispatches an operator by a set of keys, the highest first:
// autograd comes before the backends. Trireme claims a key between the two (kCaptureKey) and
// registers one fallback under it, which catches all operators. The key counts only on threads that
// include it in their thread-local key set, which a HookScope does. So threads without a hook do
// not pay for the fallback, and a hook sees operators after autograd has taken them apart.
//
// LibTorch passes the thread-local key set on to threads that it starts, but not the hook. Whether
// the hook only checks must be known there, so that is noted in the key set as well (kOnlyChecks).
#include "trireme/capture/operator_hook.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme::internal {
namespace {

thread_local OperatorHook* hook_of_thread = nullptr;

// Excluded on a thread whose hook only checks. No tensor has this key, so excluding it has no other
// effect.
constexpr c10::DispatchKey kOnlyChecks = c10::DispatchKey::FPGA;

void run_hook(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (hook_of_thread == nullptr && c10::impl::tls_is_dispatch_key_excluded(kOnlyChecks)) {
    return op.redispatchBoxed(keys_below_hook(keys), stack);
  }
  if (hook_of_thread == nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("operator '", op.operator_name().name,
                             "' of a function that is being captured ran on another thread; a "
                             "captured function runs on one thread"));
  }
  hook_of_thread->run(op, keys, stack);
}

// Registers the fallback when it is first needed. LibTorch reserves this key for a feature of its
// own. Once a LibTorch uses it, this must fail rather than silently record nothing.
void register_fallback_once() {
  // Never destroyed. Marked as used, since the leak checker reports the library as leaked if the
  // optimiser drops the pointer.
  [[gnu::used]] static const auto* library = [] {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kCaptureKey)) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "functions cannot be captured: this LibTorch uses the dispatch key that Trireme "
                  "captures with (trireme/graph/capture_key.h); use the version of LibTorch that "
                  "Trireme was built for");
    }
    auto* made = new torch::Library(torch::Library::IMPL, "_", kCaptureKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&run_hook>());
    return made;
  }();
}

}  // namespace

HookScope::HookScope(OperatorHook* hook)
    : outer_(hook_of_thread),
      outer_included_(c10::impl::tls_is_dispatch_key_included(kCaptureKey)),
      outer_only_checks_(c10::impl::tls_is_dispatch_key_excluded(kOnlyChecks)) {
  if (hook != nullptr) register_fallback_once();
  hook_of_thread = hook;
  c10::impl::tls_set_dispatch_key_included(kCaptureKey, hook != nullptr);
  c10::impl::tls_set_dispatch_key_excluded(kOnlyChecks, hook != nullptr && hook->only_checks());
}

HookScope::~HookScope() {
  hook_of_thread = outer_;
  c10::impl::tls_set_dispatch_key_included(kCaptureKey, outer_included_);
  c10::impl::tls_set_dispatch_key_excluded(kOnlyChecks, outer_only_checks_);
}

OperatorHook* current_hook() {
  return hook_of_thread;
}

}  // namespace trireme::internal
