#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/collective/engine.h"
#include "trireme/collective/implementation.h"

namespace trireme::internal {

// The engine of a group, and the implementation that it belongs to.
struct ChosenEngine {
  CommunicationImplementation implementation;  // kAuto for a hierarchy, which has two of them
  std::unique_ptr<CollectiveEngine> engine;
};

// Makes the engine for a group, and logs the choice if it was left to us. All members must call it,
// and all choose the same. FAILED_PRECONDITION on all of them if they ask for different
// implementations. Blocks until the deadline at most.
absl::StatusOr<ChosenEngine> choose_engine(Group& group, CommunicationImplementation implementation,
                                           Time deadline);

}  // namespace trireme::internal
