#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>

namespace trireme::internal {

// A number that tells whether a storage's bytes have changed. Whole for storages up to a few
// megabytes; of larger ones evenly spaced blocks, so that a capture's cost stays bounded. 0 where
// there is nothing that this process can read.
uint64_t fingerprint(const c10::StorageImpl& storage);

}  // namespace trireme::internal
