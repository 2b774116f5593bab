#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/base/crc32c.h"

namespace trireme {

// Returns the checksum of a record in a TFRecord file: the CRC-32C, rotated and shifted, since
// checksums of data that contains checksums detect less.
inline uint32_t masked_crc32c(const void* data, size_t bytes) {
  const uint32_t crc = crc32c(data, bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

}  // namespace trireme
