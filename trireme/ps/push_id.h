#pragma once

#include <cstdint>

namespace trireme {

// Identifies a push, so that servers can recognise a repetition of it. The identity does not
// include the worker: a closure that is requeued runs on another worker and makes the same push.
struct PushId {
  uint64_t writer = 0;    // incarnation of the program or coordinator that owns the push
  uint64_t sequence = 0;  // number of the step or closure
  uint32_t round = 0;     // position of the push within the step or closure
};

}  // namespace trireme
