#pragma once

#include <c10/core/Storage.h>

#include <cstddef>

namespace trireme::internal {

// Registers the operators of the stand-in accelerator with LibTorch's dispatcher. Called once.
void register_device_operators();

// Gives a device's storage more memory, and copies its content there.
void grow_device_storage(const c10::Storage& storage, size_t bytes);

}  // namespace trireme::internal
