#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/collective/engine.h"

namespace trireme::internal {

// Returns an engine that moves tensors through shared memory within each host, and with the ring
// between the hosts. `hosts` is the result of find_hosts(). All members call it. It fails on all
// members if those of one host cannot share memory. The group must outlive the engine.
absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_hierarchy_engine(
    Group& group, const std::vector<std::vector<int>>& hosts, Time deadline);

}  // namespace trireme::internal
