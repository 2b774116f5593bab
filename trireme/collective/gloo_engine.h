#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/collective/engine.h"

namespace trireme::internal {

// Makes an engine that uses Gloo, through LibTorch. Gloo listens on the host of this member's
// address, at a port of its own, and its traffic is neither encrypted nor authenticated; so a group
// whose tasks have certificates is rejected. All members must call it, and all of them succeed or
// fail. The group must outlive the engine.
absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_gloo_engine(Group& group, Time deadline);

}  // namespace trireme::internal
