#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "trireme/base/mutex.h"
#include "trireme/rpc/call.h"
#include "trireme/rpc/call_queue.h"
#include "trireme/rpc/flow_control.h"
#include "trireme/rpc/grpc_bridge.h"

namespace trireme::internal {

// What a call needs to know of its channel.
struct Target {
  std::shared_ptr<grpc::GenericStub> stub;
  std::string task;
  std::string address;
  MessageLimits limits;
  bool secure = false;
};

// The client's side of one call. It owns itself from start() to its callback.
//
// On the wire a call is always a stream of frames each way. When both ways fit one frame, the
// unary form of gRPC's client says the same with a third of the events; otherwise frames are
// written and read side by side. Between the request's frames the server's grants are read, and
// between the answer's frames ours are written; so the stream stays open for writing until the
// server ends it. After start() events come one at a time, on the thread of the call's queue.
class OutgoingCall {
 public:
  static void start(const Target& target, const std::string& method, const Prefix& prefix,
                    Message request, const CallOptions& options, CallQueue queue,
                    OnResponse on_response);

 private:
  OutgoingCall(const Target& target, const std::string& method, const CallOptions& options,
               bool unary, CallQueue queue, OnResponse on_response);
  ~OutgoingCall() = default;

  // Lets the timer of a call that may have ended find it as long as it lives.
  struct Timer {
    Mutex mutex;
    OutgoingCall* call ABSL_GUARDED_BY(mutex) = nullptr;
  };

  void end_unless_heard_by(Time time);
  void start_unary(MessageWriter writer);
  void start_stream(MessageWriter writer);
  void write_on();
  void write(const grpc::ByteBuffer& frame);
  void on_unary(bool ok);
  void on_written(bool ok);
  void on_read(bool ok);
  void on_finished(bool ok);
  void event_done();
  void complete();
  absl::Status outcome() const;

  const Target target_;
  const std::string method_;
  const Time first_word_;
  const std::stop_token stop_;
  const CallQueue queue_;
  OnResponse on_response_;
  grpc::ClientContext context_;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_, on_end_;

  std::unique_ptr<grpc::GenericClientAsyncResponseReader> unary_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  std::optional<MessageWriter> writer_;  // of the request, until all of it is handed to gRPC
  SendWindow send_window_;
  std::optional<uint64_t> grant_;  // of the answer's bytes, to be written
  bool writing_ = false;
  bool ended_ = false;  // nothing can be written any more
  grpc::ByteBuffer frame_;
  std::shared_ptr<Timer> timer_;
  std::atomic<bool> heard_ = false;  // a frame has come
  std::atomic<bool> late_ = false;   // ended, as none came in time
  bool answer_began_ = false;
  ReceiveWindow receive_window_;
  MessageReader reader_;
  grpc::Status grpc_status_;
  absl::Status read_status_;
  int events_ = 0;  // that are still to come

  MemberTag<OutgoingCall, &OutgoingCall::on_unary> unary_tag_{this};
  MemberTag<OutgoingCall, &OutgoingCall::on_written> written_tag_{this};
  MemberTag<OutgoingCall, &OutgoingCall::on_read> read_tag_{this};
  MemberTag<OutgoingCall, &OutgoingCall::on_finished> finished_tag_{this};
};

}  // namespace trireme::internal
