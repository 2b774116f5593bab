#pragma once

#include <cstdint>
#include <vector>

#include "trireme/graph/graph.pb.h"

namespace trireme::internal {

// Sets the numbers of forward nodes in a graph whose nodes were renumbered. `places` has 1 + the
// new number of each old node.
inline void renumber_forward(const std::vector<uint32_t>& places, proto::GraphDef& def) {
  for (proto::Node& node : *def.mutable_nodes()) {
    const uint32_t forward = node.differentiates();
    if (forward > 0 && forward <= places.size()) node.set_differentiates(places[forward - 1]);
  }
}

}  // namespace trireme::internal
