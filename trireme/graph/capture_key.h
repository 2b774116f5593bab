#pragma once

#include <c10/core/DispatchKey.h>

namespace trireme::internal {

// The dispatch key under which operators are recorded (capture/). This key is below autograd and
// above every backend, so that a capture sees the operators that autograd calls. Nothing in
// LibTorch 2.13 uses it yet; it is reserved there for a C++ fake-tensor mode.
constexpr c10::DispatchKey kCaptureKey = c10::DispatchKey::Fake;

}  // namespace trireme::internal
