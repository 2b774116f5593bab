#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/rpc/frame.h"

// Per-message flow control, above gRPC's own (docs/wire.md, docs/decisions/grants.md).
//
// A receiver must not have to buffer a large message that it does not read. HTTP/2 has two windows
// for that, one for each stream and one for the connection. gRPC 1.51 sizes both by its estimate of
// the network. They do not throttle the network, but they let tens of MiB pile up for a stream that
// nobody reads. Unread bytes of a stream do not close the connection's window: gRPC opens that
// again as bytes arrive, not as they are read. So a waiting call does not block the other calls of
// its connection, but the connection's window does not limit unread bytes either.
//
// A fixed window would not help. gRPC 1.51 applies the setting to streams only. The connection's
// window then stays at 64 KiB plus the rest of the frames that are being read, which stalls the
// sender in every frame.
//
// Therefore gRPC's windows are left as they are, and the receiver of a message grants its bytes on
// the same stream as it takes them in. The sender stops at the end of what was granted. Grants
// limit each message on its own. The connection's window, which all calls of a channel share, still
// applies below them.
namespace trireme::internal {

// Bytes of a message that may be sent before the first grant. A message that fits needs no grant.
// A request that waits for admission (Method::intake) takes no more of the receiver's memory,
// provided its tensor table ends in the first frame. Otherwise grants were sent before it waits.
inline constexpr uint64_t kInitialGrantBytes = 2 * kFrameBytes;
// Bytes that a grant permits beyond those taken in. A sender does not stall as long as bandwidth
// times round trip is at most kWindowBytes - kGrantBytes, for example 25 Gbit/s at 1.3 ms: that
// much is left of a grant when the receiver sends the next one.
inline constexpr uint64_t kWindowBytes = 8 << 20;
// Smallest increment of a grant. Sending a grant costs as much as a small call.
inline constexpr uint64_t kGrantBytes = 4 << 20;
// Otherwise no grant could be due while the sender waits for room for a whole frame.
static_assert(kWindowBytes >= kGrantBytes + kFrameBytes, "a sender could wait forever");

// Encodes a grant as a frame of its own. `bytes` is the total that may be sent, counted from the
// first byte of the message.
std::string encode_grant(uint64_t bytes);
// Returns the granted total, or nullopt if the frame is not a grant but part of a message.
std::optional<uint64_t> decode_grant(const std::string& frame);
// Size of an encoded grant.
inline constexpr size_t kGrantFrameBytes = 16;

// Counts what the sender of one message has sent against what it was granted. Not thread-safe.
class SendWindow {
 public:
  // Returns true if `bytes` more bytes may be sent now.
  bool has_room(uint64_t bytes) const { return sent_ + bytes <= granted_; }
  // Records that `bytes` more bytes were sent.
  void sent(uint64_t bytes) { sent_ += bytes; }
  // Raises the total that may be sent to `bytes`. A grant that is not higher changes nothing.
  void grant(uint64_t bytes) {
    if (bytes > granted_) granted_ = bytes;
  }
  // Returns true if all of a message of `message_bytes` can be sent without another grant.
  bool covers(uint64_t message_bytes) const { return granted_ >= message_bytes; }

 private:
  uint64_t granted_ = kInitialGrantBytes;
  uint64_t sent_ = 0;
};

// Decides when the receiver of one message sends a grant. Not thread-safe.
class ReceiveWindow {
 public:
  // Records that `bytes` more bytes were taken in.
  void took(uint64_t bytes) { taken_ += bytes; }
  // Returns the total to grant now, or nullopt if no grant is due. `left` is the number of bytes
  // that the message still has, if known: bytes that do not exist are not granted.
  std::optional<uint64_t> next_grant(std::optional<uint64_t> left) {
    if (left && granted_ >= taken_ + *left) return std::nullopt;
    if (taken_ + kWindowBytes < granted_ + kGrantBytes) return std::nullopt;
    granted_ = taken_ + kWindowBytes;
    return granted_;
  }

 private:
  uint64_t taken_ = 0;
  uint64_t granted_ = kInitialGrantBytes;
};

}  // namespace trireme::internal
