#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme {

// Returns the CRC-32C (Castagnoli) of `crc`'s bytes followed by these, so that the checksum of data
// that arrives in parts is computed part by part. Uses the instruction of the processor if there is
// one.
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

// Returns the CRC-32C of two byte sequences, one after the other, from the checksums of both. Takes
// logarithmic time.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes);

namespace internal {

// Computes crc32c() without the instruction of the processor.
uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t crc);

}  // namespace internal
}  // namespace trireme
