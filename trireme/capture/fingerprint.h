#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>

namespace trireme::internal {

// Returns a hash of the bytes of a storage, to detect that they changed. Storages of up to 4 MiB
// are hashed as a whole. Of larger ones only evenly spaced blocks are hashed, so that the cost of a
// capture stays bounded; a change between the blocks goes undetected. Returns 0 for a storage that
// is empty or not in CPU memory, and never 0 otherwise.
uint64_t fingerprint(const c10::StorageImpl& storage);

// Returns a hash like fingerprint() that is cheap enough for every call of a function: at most 64
// KiB are hashed, evenly spaced.
uint64_t quick_fingerprint(const c10::StorageImpl& storage);

}  // namespace trireme::internal
