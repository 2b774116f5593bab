#pragma once

#include <c10/core/DispatchKey.h>

namespace trireme::internal {

// The dispatch key under which operators are recorded (capture/). Below autograd and above every
// backend, and used by nothing else in LibTorch 2.13; its own C++ fake-tensor mode claims it for
// the future.
constexpr c10::DispatchKey kCaptureKey = c10::DispatchKey::Fake;

}  // namespace trireme::internal
