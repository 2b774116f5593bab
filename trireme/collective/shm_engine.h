#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trireme/collective/engine.h"

namespace trireme::internal {

// Returns an engine that moves tensors through memory that the members share. All members call it.
// It fails on all members, with UNAVAILABLE and the reason, if one cannot open the memory of
// another: they must run on one machine, as one user. The group must outlive the engine.
absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_shm_engine(Group& group, Time deadline);

}  // namespace trireme::internal
