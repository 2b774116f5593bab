#include "trireme/rpc/flow_control.h"

#include <cstring>

namespace trireme::internal {
namespace {

constexpr uint32_t kMagic = 0x52475254;  // "TRGR"

// A grant on the wire, little-endian (docs/wire.md). It cannot be mistaken for the first frame of a
// message, which begins with another magic, and no grant follows that frame in its direction.
struct RawGrant {
  uint32_t magic;
  uint32_t zero;
  uint64_t bytes;
};
static_assert(sizeof(RawGrant) == kGrantFrameBytes);

}  // namespace

std::string encode_grant(uint64_t bytes) {
  const RawGrant raw = {kMagic, 0, bytes};
  return std::string(reinterpret_cast<const char*>(&raw), sizeof(raw));
}

std::optional<uint64_t> decode_grant(const std::string& frame) {
  RawGrant raw;
  if (frame.size() != sizeof(raw)) return std::nullopt;
  std::memcpy(&raw, frame.data(), sizeof(raw));
  if (raw.magic != kMagic || raw.zero != 0) return std::nullopt;
  return raw.bytes;
}

}  // namespace trireme::internal
