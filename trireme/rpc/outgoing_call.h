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
#include "trireme/rpc/shared_region.h"

namespace trireme::internal {

// The part of a channel that its calls need. Calls may outlive the channel, so each has a copy.
struct Target {
  std::shared_ptr<grpc::GenericStub> stub;
  std::string task;
  std::string address;
  MessageLimits limits;
  bool secure = false;  // true with TLS
  // True while calls may use memory that is shared with the server.
  std::shared_ptr<std::atomic<bool>> shares_memory;
};

// The client's side of one call. It owns itself from start() to its callback. The source describes
// its protocol. After start() its events come one at a time, on the thread that polls its queue.
class OutgoingCall {
 public:
  // Starts one attempt of a call. Calls `on_response` once: on the thread that polls the queue, or
  // before the return if the request cannot be sent.
  static void start(const Target& target, const std::string& method, const Prefix& prefix,
                    Message request, const CallOptions& options, CallQueue queue,
                    OnResponse on_response);

 private:
  OutgoingCall(const Target& target, const std::string& method, const CallOptions& options,
               bool unary, CallQueue queue, OnResponse on_response);
  ~OutgoingCall() = default;

  // Connects a timer, which cannot be cancelled, to a call that may end before it fires.
  struct Timer {
    Mutex mutex;
    OutgoingCall* call ABSL_GUARDED_BY(mutex) = nullptr;  // null once the call has ended
  };

  // Cancels the call at `time` if no frame has arrived by then.
  void end_unless_heard_by(Time time);
  void start_unary(MessageWriter writer);
  void start_stream(MessageWriter writer);
  // Writes the next frame of the request if it was granted, or else a pending grant.
  void write_on();
  void write(const grpc::ByteBuffer& frame);
  void on_unary(bool ok);
  void on_written(bool ok);
  void on_read(bool ok);
  void on_finished(bool ok);
  // Counts an event. Completes the call after the last one.
  void event_done();
  // Deletes this call and calls back.
  void complete();
  // Takes the answer out of the reader.
  Response take_answer();
  // Decides about the shared memory that the call has used: whether it can be used again, and
  // whether later calls use such memory.
  void end_sharing();
  // Returns OK if the answer is complete, otherwise the error, with task, address and method.
  absl::Status outcome() const;

  const Target target_;
  const std::string method_;
  const Time first_frame_deadline_;
  const std::stop_token stop_;
  const CallQueue queue_;
  OnResponse on_response_;
  grpc::ClientContext context_;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_, on_end_;

  std::unique_ptr<grpc::GenericClientAsyncResponseReader> unary_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  std::optional<MessageWriter> writer_;  // the request, until gRPC has all of it
  SendWindow send_window_;
  std::optional<uint64_t> grant_;  // grant for the answer that is still to be written
  bool writing_ = false;           // true while gRPC has a write in progress
  bool ended_ = false;             // true once nothing can be written any more
  grpc::ByteBuffer frame_;
  std::shared_ptr<Timer> timer_;
  std::atomic<bool> heard_ = false;  // true once a frame has arrived
  std::atomic<bool> late_ = false;   // true if the timer cancelled the call
  bool answer_began_ = false;        // true once a frame of the answer, not a grant, has arrived
  ReceiveWindow receive_window_;
  MessageReader reader_;
  const std::shared_ptr<const SharedPlaces> places_;  // places that the request may offer
  std::shared_ptr<SharedRegion> region_;              // memory that the server uses; null for none
  grpc::Status grpc_status_;
  absl::Status read_status_;  // first error of the reader
  int events_ = 0;            // number of events that are still to come

  MemberTag<OutgoingCall, &OutgoingCall::on_unary> unary_tag_{this};
  MemberTag<OutgoingCall, &OutgoingCall::on_written> written_tag_{this};
  MemberTag<OutgoingCall, &OutgoingCall::on_read> read_tag_{this};
  MemberTag<OutgoingCall, &OutgoingCall::on_finished> finished_tag_{this};
};

}  // namespace trireme::internal
