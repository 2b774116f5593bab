#pragma once

#include <cstdlib>

#include "trireme/testing/accelerator/stand_in.h"

namespace trireme {

// Registers the stand-in accelerator with as many devices as $TRIREME_STAND_IN_DEVICES says, if it
// is set. The servers of this process then have these devices, unless they are given others.
inline void register_stand_in_of_environment() {
  const char* devices = std::getenv("TRIREME_STAND_IN_DEVICES");
  if (devices != nullptr) register_stand_in_accelerator({.devices = std::atoi(devices)});
}

}  // namespace trireme
