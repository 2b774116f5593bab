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

// Between our types and gRPC's. Included by sources of rpc/ only.
namespace trireme::internal {

// What one thread wrote before hand_over is seen by the one that gets the object back from gRPC and
// calls take_over. So it is anyway, but ThreadSanitizer, which cannot see into gRPC, has to be
// told.
void hand_over(void* object);
void take_over(void* object);

// What a completion queue gives back. An operation is started with tag.start() as its tag, and its
// end calls on_event. The pair tells ThreadSanitizer, which cannot see into gRPC, that what was
// written before the start is seen by the thread that gets the event.
class Tag {
 public:
  virtual ~Tag() = default;
  virtual void on_event(bool ok) = 0;

  void* start();
  // Runs the handler of an event that a queue returned.
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

grpc::ByteBuffer to_byte_buffer(std::vector<Piece> frame);
// Feeds a received frame to the reader, from this byte on. Returns where it stopped, which is
// before the end only if the reader pauses.
absl::StatusOr<size_t> read_frame(const grpc::ByteBuffer& frame, MessageReader& reader,
                                  size_t from = 0);
grpc::ByteBuffer grant_frame(uint64_t bytes);
// Nothing when the frame is part of a message.
std::optional<uint64_t> read_grant(const grpc::ByteBuffer& frame);

grpc::Status to_grpc(const absl::Status& status);
// True when the status was made by to_grpc, and so by a Trireme server, not by gRPC itself.
bool made_by_peer(const grpc::Status& status);
absl::Status from_grpc(const grpc::Status& status);

// What the process has to be told before its first use of gRPC; every further call does nothing.
//
// - gRPC's own log lines speak of its insides; they appear only when ours are at debug.
// - gRPC takes memory for what arrives from malloc, in pieces of 64 KiB, which glibc gives back to
//   the system as soon as a message is done with: the page faults of the next one then cost a third
//   of receiving it. From here on the process keeps what it frees, up to 64 MiB.
// - gRPC's locks are abseil's, which in Debian's build look for deadlocks at every turn.
void prepare_grpc();

// gRPC deadlines on the monotonic clock.
gpr_timespec to_timespec(Time time);
Time from_timespec(gpr_timespec time);

}  // namespace trireme::internal
