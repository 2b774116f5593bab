#pragma once

namespace trireme::internal {

// Largest number of devices of the stand-in accelerator, limited by the processor's 15 protection
// keys.
inline constexpr int kMaxDevices = 8;

// Sets the number of devices. Called once.
void set_device_count(int count);
// Returns 0 before set_device_count().
int device_count();

// Returns the current device of the calling thread.
int current_device();
// Sets the current device of the calling thread and returns the one before. Does nothing if
// `device` is -1. Throws if the device does not exist.
int exchange_current_device(int device);

}  // namespace trireme::internal
