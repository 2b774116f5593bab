#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/grpc_bridge.h"
#include "trireme/rpc/service.h"

namespace trireme::internal {

class IncomingCall;

// The server's side of a stream of messages (Method::on_message): a call without an answer, on
// which each frame of the caller is a whole message. Messages are numbered from 1, and the server
// writes the numbers of those that were taken. It does not grant bytes: the sender limits the
// messages that were not taken. If they exceed ServerCallContext::untaken, the stream ends with
// RESOURCE_EXHAUSTED. Keeps itself alive until the call has ended.
class IncomingStream : public std::enable_shared_from_this<IncomingStream> {
 public:
  // Reads messages from a call that was accepted and checked.
  static void start(std::shared_ptr<IncomingCall> call, const StreamHandler& handler);
  IncomingStream(std::shared_ptr<IncomingCall> call, const StreamHandler& handler);

 private:
  void on_read(bool ok);
  void on_written(bool ok);
  // Takes the message's share of the budgets, reads it, and passes it to the handler.
  absl::Status take_message(const grpc::ByteBuffer& frame);
  // Records that a message was taken, or ends the stream with the error.
  void on_taken(uint64_t number, const absl::Status& status);
  // Writes the numbers of messages that were taken meanwhile, or ends the call if it is over.
  void move_on() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<IncomingCall> call_;
  const StreamHandler& handler_;
  grpc::ByteBuffer frame_;
  uint64_t received_ = 0;                         // number of messages
  std::shared_ptr<IncomingStream> self_reading_;  // set until the caller sends no more

  Mutex mutex_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> taken_ ABSL_GUARDED_BY(mutex_);  // numbers that were not written yet
  absl::Status error_ ABSL_GUARDED_BY(mutex_);           // ends the stream unless it is OK
  std::shared_ptr<IncomingStream> self_writing_ ABSL_GUARDED_BY(mutex_);

  MemberTag<IncomingStream, &IncomingStream::on_read> read_tag_{this};
  MemberTag<IncomingStream, &IncomingStream::on_written> written_tag_{this};
};

}  // namespace trireme::internal
