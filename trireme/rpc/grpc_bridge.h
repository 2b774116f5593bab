#pragma once

#include <grpc/support/time.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/rpc/frame.h"

// Converts between Trireme's types and gRPC's. Included by sources of rpc/ only.
namespace trireme::internal {

// Tell ThreadSanitizer that writes before hand_over(object) happen before take_over(object) on
// another thread. gRPC orders them, but the sanitizer cannot see into gRPC. Without the sanitizer
// they do nothing.
void hand_over(void* object);
void take_over(void* object);

// The tag of an operation on a completion queue. The operation is started with tag.start() as its
// tag, and its event calls on_event. What was written before start() is visible to on_event, for
// ThreadSanitizer too.
class Tag {
 public:
  virtual ~Tag() = default;
  // Handles the event. `ok` is false if the operation failed or was cancelled.
  virtual void on_event(bool ok) = 0;

  // Returns the tag to pass to gRPC.
  void* start();
  // Calls on_event of a tag that a queue returned.
  static void dispatch(void* tag, bool ok);
};

// A tag that calls a member function.
template <typename T, void (T::*kMethod)(bool)>
class MemberTag final : public Tag {
 public:
  explicit MemberTag(T* self) : self_(self) {}
  void on_event(bool ok) override { (self_->*kMethod)(ok); }

 private:
  T* self_;
};

// Makes a gRPC message of a frame. Tensors are not copied; the buffer keeps their memory alive.
grpc::ByteBuffer to_byte_buffer(std::vector<Piece> frame);
// Passes a received frame to the reader, from byte `from` on. Returns the position at which it
// stopped, which is before the end of the frame only if the reader paused.
absl::StatusOr<size_t> read_frame(const grpc::ByteBuffer& frame, MessageReader& reader,
                                  size_t from = 0);
// Makes a grant (flow_control.h).
grpc::ByteBuffer grant_frame(uint64_t bytes);
// Returns the granted total, or nullopt if the frame is not a grant but part of a message.
std::optional<uint64_t> read_grant(const grpc::ByteBuffer& frame);

// Make a frame of numbers, and return those of a frame; bytes beyond the last number are ignored.
grpc::ByteBuffer frame_of_numbers(const std::vector<uint64_t>& numbers);
std::vector<uint64_t> read_numbers(const grpc::ByteBuffer& frame);

// Converts an error. Trireme's error code and the origin travel in the status's details.
grpc::Status to_grpc(const absl::Status& status);
// Returns true if a Trireme server made the status with to_grpc(), and not gRPC itself.
bool made_by_peer(const grpc::Status& status);
absl::Status from_grpc(const grpc::Status& status);

// Prepares the process for gRPC. Must be called before the first use of gRPC; further calls do
// nothing.
//
// - Routes gRPC's errors to Trireme's log, and drops its other log lines. The errors are about its
//   internals, so they appear at debug level only, except failed TLS handshakes and assertions.
// - Makes malloc keep freed memory, up to 64 MiB. gRPC allocates memory for what arrives in pieces
//   of 64 KiB. glibc would return it to the system after each message, and the page faults of the
//   next message would cost a third of receiving it.
// - Turns off deadlock detection in abseil's mutexes, which gRPC uses. It is on in Debian's build
//   and costs time at every lock.
void prepare_grpc();

// Convert deadlines to and from gRPC's monotonic clock.
gpr_timespec to_timespec(Time time);
Time from_timespec(gpr_timespec time);

}  // namespace trireme::internal
