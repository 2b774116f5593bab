#pragma once

namespace trireme::internal {

// Registers the stand-in accelerator's devices, streams, events, generators and allocators with
// LibTorch. Called once.
void register_device_guard();

}  // namespace trireme::internal
