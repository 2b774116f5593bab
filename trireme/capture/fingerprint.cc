#include "trireme/capture/fingerprint.h"

#include <cstring>

#include "trireme/capture/memory_lock.h"

namespace trireme::internal {
namespace {

constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;

uint64_t load(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kPrime;
  return hash ^ (hash >> 29);
}

// Hashes in four independent chains, so that the processor overlaps their multiplications.
uint64_t hash_bytes(const char* bytes, size_t size, uint64_t seed) {
  uint64_t lanes[4] = {seed + 1, seed + 2, seed + 3, seed + 4};
  size_t i = 0;
  for (; i + 32 <= size; i += 32) {
    for (int lane = 0; lane < 4; ++lane) lanes[lane] = mix(lanes[lane], load(bytes + i + 8 * lane));
  }
  uint64_t hash = mix(mix(mix(lanes[0], lanes[1]), lanes[2]), lanes[3]);
  for (; i < size; ++i) hash = mix(hash, static_cast<unsigned char>(bytes[i]));
  return hash;
}

// Hashes a storage of up to `limit` bytes as a whole, and evenly spaced blocks of a larger one that
// together have `limit` bytes.
uint64_t hash_storage(const c10::StorageImpl& storage, size_t limit, size_t block) {
  const char* bytes = static_cast<const char*>(locked_data(storage));
  const size_t size = storage.nbytes();
  if (bytes == nullptr || size == 0 || !storage.device().is_cpu()) return 0;
  if (size <= limit) return hash_bytes(bytes, size, size) | 1;
  uint64_t hash = size;
  const size_t blocks = limit / block;
  for (size_t i = 0; i < blocks; ++i) {
    const size_t begin = (size - block) / (blocks - 1) * i;
    hash = hash_bytes(bytes + begin, block, hash);
  }
  return hash | 1;
}

}  // namespace

uint64_t fingerprint(const c10::StorageImpl& storage) {
  return hash_storage(storage, /*limit=*/4 << 20, /*block=*/64 << 10);
}

uint64_t quick_fingerprint(const c10::StorageImpl& storage) {
  return hash_storage(storage, /*limit=*/64 << 10, /*block=*/1 << 10);
}

}  // namespace trireme::internal
