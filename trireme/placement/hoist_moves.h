#pragma once

#include <cstdint>
#include <set>

#include "trireme/graph/graph.pb.h"

namespace trireme::internal {

// Puts moves between accelerators right behind the nodes that make their values, so that the
// transfer goes on while the device computes what follows. `moves` are numbers of nodes that move
// values, or pack them for a move, and whose values nothing writes to. A move then belongs to the
// replica that made the value last. The graph must have no transfers to other tasks.
void hoist_moves(const std::set<uint32_t>& moves, proto::GraphDef& def);

}  // namespace trireme::internal
