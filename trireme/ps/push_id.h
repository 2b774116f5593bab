#pragma once

#include <cstdint>

namespace trireme {

// Names a push, wherever it is computed. The worker is no part of the name: a closure that is run
// again runs on another worker and means the same push.
struct PushId {
  uint64_t writer = 0;    // incarnation of the session or coordinator that wants the push
  uint64_t sequence = 0;  // number of the step or closure
  uint32_t round = 0;     // place of the push within that step or closure
};

}  // namespace trireme
