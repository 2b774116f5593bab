#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/rpc/frame.h"

// How far the sender of a message may be ahead of its receiver (docs/wire.md). gRPC's own windows
// follow its estimate of the network: they never stall it, but they also let tens of MiB pile up
// in front of a receiver that does not read. So the receiver of a large message grants its bytes
// as it takes them in, and the sender waits at the end of what was granted. Windows that are
// smaller than the network needs would do the same and stall it: gRPC 1.51 with a fixed window
// keeps that of the connection at 64 KiB.
namespace trireme::internal {

// Sent without a grant. A message that fits needs none; a request that has to wait for its turn
// holds no more than this of the receiver's memory.
inline constexpr uint64_t kUngranted = 2 * kFrameBytes;
// Granted beyond what was taken in; enough for 25 Gbit/s with a round trip of 2.6 ms.
inline constexpr uint64_t kWindowBytes = 8 << 20;
// A grant costs as much as a small call, so it is worth at least this.
inline constexpr uint64_t kGrantBytes = 4 << 20;
static_assert(kWindowBytes >= kGrantBytes + kFrameBytes, "a sender could wait for ever");

// A grant on the wire is a frame of its own: how many bytes of the message may be sent in all.
std::string encode_grant(uint64_t bytes);
// Nothing when the frame is part of a message.
std::optional<uint64_t> decode_grant(const std::string& frame);
inline constexpr size_t kGrantFrameBytes = 16;

// The sender's side. Not thread-safe.
class SendWindow {
 public:
  bool has_room(uint64_t bytes) const { return sent_ + bytes <= granted_; }
  void sent(uint64_t bytes) { sent_ += bytes; }
  // Grants only grow: an older one says nothing new.
  void grant(uint64_t bytes) {
    if (bytes > granted_) granted_ = bytes;
  }
  // True when the rest of a message of this size can be sent without another grant.
  bool covers(uint64_t message_bytes) const { return granted_ >= message_bytes; }

 private:
  uint64_t granted_ = kUngranted;
  uint64_t sent_ = 0;
};

// The receiver's side. Not thread-safe.
class ReceiveWindow {
 public:
  void took(uint64_t bytes) { taken_ += bytes; }
  // The next grant, if one is due. `left` is what the message still has, if that is known.
  std::optional<uint64_t> next_grant(std::optional<uint64_t> left) {
    if (left && granted_ >= taken_ + *left) return std::nullopt;
    if (taken_ + kWindowBytes < granted_ + kGrantBytes) return std::nullopt;
    granted_ = taken_ + kWindowBytes;
    return granted_;
  }

 private:
  uint64_t taken_ = 0;
  uint64_t granted_ = kUngranted;
};

}  // namespace trireme::internal
