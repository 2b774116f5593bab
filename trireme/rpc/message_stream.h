#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/call_queue.h"
#include "trireme/rpc/grpc_bridge.h"
#include "trireme/rpc/message.h"
#include "trireme/rpc/outgoing_call.h"

namespace trireme::internal {

// The client's side of a stream of messages (incoming_stream.h). A message costs half as much as a
// call. The stream lasts until it fails or is stopped, and owns itself for that time. Thread-safe.
class MessageStream : public std::enable_shared_from_this<MessageStream> {
 public:
  // Called once for each message: with OK when it was taken, otherwise with the error that ended
  // the stream. Must not block.
  using OnTaken = std::function<void(const absl::Status&)>;

  // Opens a stream. `prefix` names the sender and the receiver of all messages. `stop` ends it.
  static std::shared_ptr<MessageStream> open(const Target& target, const std::string& method,
                                             const Prefix& prefix, CallQueue queue,
                                             std::stop_token stop);
  // Returns a stream that has ended with an error.
  static std::shared_ptr<MessageStream> ended(const Target& target, const std::string& method,
                                              const absl::Status& why);
  MessageStream(const Target& target, const std::string& method, const Prefix& prefix,
                CallQueue queue, std::stop_token stop);

  // Sends a message, which must fit into one frame of kMaxFrameBytes. Messages arrive in the order
  // in which they are sent. Calls back on a thread that serves many calls, or before the return if
  // the stream has ended. The caller limits the number of messages that were not taken yet.
  void send(Message message, OnTaken done);

 private:
  void start();
  void on_written(bool ok);
  void on_read(bool ok);
  void on_finished(bool ok);
  absl::Status outcome() const;

  const Target target_;
  const std::string method_;
  const Prefix prefix_;
  const CallQueue queue_;
  grpc::ClientContext context_;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_, on_end_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer frame_;
  grpc::Status grpc_status_;
  std::shared_ptr<MessageStream> self_reading_;  // set until the stream has ended

  Mutex mutex_;
  std::shared_ptr<MessageStream> self_writing_ ABSL_GUARDED_BY(mutex_);  // set during a write
  std::deque<grpc::ByteBuffer> unsent_ ABSL_GUARDED_BY(mutex_);
  uint64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;                    // number of messages
  std::map<uint64_t, OnTaken> untaken_ ABSL_GUARDED_BY(mutex_);  // by number of the message
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);

  MemberTag<MessageStream, &MessageStream::on_written> written_tag_{this};
  MemberTag<MessageStream, &MessageStream::on_read> read_tag_{this};
  MemberTag<MessageStream, &MessageStream::on_finished> finished_tag_{this};
};

}  // namespace trireme::internal
