#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace trireme::internal {

// Checks an operator's arguments before its kernel sees them. Throws Error if the kernel must not
// run on them; the message says why.
using Guard = void (*)(c10::ArrayRef<c10::IValue> arguments);

}  // namespace trireme::internal
