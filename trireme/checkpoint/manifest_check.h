#pragma once

#include "absl/status/status.h"
#include "trireme/checkpoint/saved_state.h"

namespace trireme::internal {

// Returns INVALID_ARGUMENT, naming the part, if a manifest contradicts itself. Uses no more memory
// than the manifest has.
absl::Status check_manifest(const Manifest& manifest);

}  // namespace trireme::internal
