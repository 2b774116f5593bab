#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "trireme/base/gate.h"
#include "trireme/base/mutex.h"
#include "trireme/base/rate_limit.h"
#include "trireme/rpc/answer_cache.h"
#include "trireme/rpc/call_watch.h"
#include "trireme/rpc/flow_control.h"
#include "trireme/rpc/grpc_bridge.h"
#include "trireme/rpc/receive_budget.h"
#include "trireme/rpc/segment_cache.h"
#include "trireme/rpc/server_options.h"
#include "trireme/rpc/service.h"
#include "trireme/rpc/shared_message.h"

namespace trireme::internal {

// Metrics of one method. All are null if the server has no metrics.
struct MethodStats {
  Counter* calls = nullptr;
  Counter* errors = nullptr;
  Counter* bytes_in = nullptr;
  Counter* bytes_out = nullptr;
  Histogram* latency_us = nullptr;
};

class IncomingCall;

// A Method as the server keeps it.
struct RegisteredMethod {
  Roles callers;
  Repeats repeats;
  Handler handler;
  std::shared_ptr<ByteBudget> intake;
  std::function<bool(const std::string& body)> scatters;
  std::function<bool(const std::string& body)> shares;
  std::function<void(std::shared_ptr<IncomingCall>)> serve_stream;  // null unless it is a stream
  MethodStats stats;
};

// State shared by all calls of a server. Must outlive them, which `alive` ensures.
struct ServerCallContext {
  explicit ServerCallContext(RpcServerOptions given)
      : options(std::move(given)),
        receiving(options.limits.connection_receive_bytes, options.limits.receive_bytes),
        scatter_budget(std::make_shared<ReceiveBudget>(options.limits.unread_bytes / 4,
                                                       options.limits.unread_bytes / 4)),
        untaken(std::make_shared<ReceiveBudget>(options.limits.connection_receive_bytes,
                                                options.limits.receive_bytes)),
        answers(options.limits.remembered),
        segments(std::make_shared<SegmentCache>(options.limits.shared_bytes)) {}

  const RpcServerOptions options;
  ReceiveBudget receiving;  // bytes of requests that are not complete yet
  // Bytes of requests left in gRPC's memory until they are served.
  const std::shared_ptr<ReceiveBudget> scatter_budget;
  // Bytes of messages of streams that have arrived and were not taken yet.
  const std::shared_ptr<ReceiveBudget> untaken;
  AnswerCache answers;
  const std::shared_ptr<SegmentCache> segments;                // shared memory of callers
  std::atomic<int> calls = 0;                                  // number of calls in flight
  absl::flat_hash_map<std::string, RegisteredMethod> methods;  // by name
  grpc::AsyncGenericService grpc_service;
  RateLimit refusals{10, std::chrono::seconds(10)};  // limits log lines about rejected peers
  Gate serving;  // holds calls that arrived and are not answered yet
  Gate alive;    // holds IncomingCalls: while there is one, gRPC may still report an event of it
};

// The server's side of one call, from its arrival to the last byte of its answer:
//
//   accept -> read frames -> handler -> write frames -> finished
//
// Between the frames of a large request it writes grants, and between the frames of a large answer
// it reads the caller's (flow_control.h). The source describes the states.
//
// Events of one call come one at a time, on the thread of its queue. Only respond(), stop_token()
// and the callback of the intake run on other threads. The call owns itself until gRPC has no event
// left for it; a ServerCall may hold it longer.
class IncomingCall : public std::enable_shared_from_this<IncomingCall>,
                     public WatchedCall,
                     private Admission {
 public:
  // Waits for the next call on the queue of `watch` and serves it. Each call that arrives starts
  // the wait for another one.
  static void accept(ServerCallContext& server, CallWatch* watch);

  IncomingCall(ServerCallContext& server, Gate::Pass alive, CallWatch* watch);

  const std::string& method() const { return context_.method(); }
  Message& request() { return request_; }
  std::vector<ScatteredTensor>& scattered() { return scattered_; }
  const OfferedPlaces& places() const { return places_; }
  const Prefix& prefix() const { return reader_.prefix(); }
  const std::optional<Peer>& peer() const { return peer_; }
  Time deadline() const { return from_timespec(context_.raw_deadline()); }
  // Returns a token that stops when the call is cancelled.
  std::stop_token stop_token();
  // Sends the answer, and keeps it for repetitions if the method is executed once.
  void respond(absl::StatusOr<Message> response);

  void cancel_if_stalled(Time now) override;

 private:
  friend class IncomingStream;  // serves the call if its method is a stream

  // Handlers of gRPC's events, one for each kind of operation.
  void on_accepted(bool ok);
  void count_bytes_in(size_t bytes) const;
  void on_read(bool ok);
  void on_grant_written(bool ok);
  void on_written(bool ok);
  void on_grant_read(bool ok);
  void on_finished(bool ok);
  void on_done(bool ok);

  // Starts to read the next frame of the request.
  void read_on();
  // Passes the frame that has arrived to the reader, after the rest of a frame that was held back.
  absl::Status take_frame();
  // Resumes the reader where it paused, with the rest of the frame that was held back.
  absl::Status take_held_frame();
  // Asks the method's intake for room. Nothing more is read until there is.
  void wait_for_admission();
  void leave_intake();
  // Writes a grant if one is due.
  void grant_more();
  void write_grant(uint64_t bytes);
  // Ends the request with `status`: calls request_ended(), at once or after a grant is written.
  void end_request(absl::Status status);
  void request_ended();
  // Runs the method's handler.
  void serve();
  // Registers a request that must be executed only once. Returns false if an earlier attempt of it
  // is in flight or was answered; its answer is then sent for this attempt too.
  absl::StatusOr<bool> begin_once();
  // Begins to write the answer, or finishes with the error.
  void send(absl::StatusOr<Message> response);
  // Ends the call with an error.
  void finish(const absl::Status& status);
  // Writes the next frame of the answer, or waits for a grant of the caller.
  void write_next();
  void read_grant_of_caller();
  void give_up();
  // Takes `bytes` from the budget of arriving requests.
  absl::Status admit(uint64_t bytes) override;
  // Sets the time by which the caller must have moved on, given the bytes moved since `since`.
  void set_progress_deadline(Time since, uint64_t bytes);
  // Removes that deadline, because the next move is the server's.
  void clear_progress_deadline() {
    progress_deadline_.store(Time::max(), std::memory_order_relaxed);
  }

  absl::Status check_role();
  void log_refusal(const absl::Status& refusal);
  // Returns an error if the message is meant for another incarnation, or uses shared memory
  // although the method cannot.
  absl::Status check_prefix(const Prefix& prefix) const;

  ServerCallContext& server_;
  const Gate::Pass alive_;  // before all that gRPC uses, so that it is released after them
  CallWatch* const watch_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  std::shared_ptr<IncomingCall> self_;       // set until the answer is out
  std::shared_ptr<IncomingCall> self_done_;  // set until gRPC reports that the call is over
  Gate::Pass serving_;
  const RegisteredMethod* registered_ = nullptr;  // null until the method is known
  bool counted_ = false;              // true once the call counts in ServerCallContext::calls
  bool answers_repetitions_ = false;  // true if its answer goes to server_.answers
  std::optional<Peer> peer_;
  Time arrived_;
  Time reading_since_;                        // time from which progress is measured
  uint64_t received_ = 0;                     // bytes of the request
  uint64_t admitted_bytes_ = 0;               // bytes that the method's intake counts for this call
  uint64_t place_ = 0;                        // place in the intake's queue; 0 if it never waited
  std::vector<ReceiveBudget::Share> shares_;  // held until the request is complete

  grpc::ByteBuffer frame_;
  grpc::ByteBuffer held_frame_;    // frame in which the reader paused before the tensors
  size_t held_from_ = 0;           // first byte of it that was not read
  bool asks_after_grant_ = false;  // true if wait_for_admission() follows the write of a grant
  bool held_back_ = false;         // true from wait_for_admission() to the next frame
  MessageReader reader_;
  ReceiveWindow receive_window_;
  bool writing_grant_ = false;
  std::optional<absl::Status> request_status_;  // result of the request, set by end_request()
  Message request_;
  OfferedPlaces places_;  // places for the answer
  std::vector<ScatteredTensor> scattered_;
  ReceiveBudget::Share scattered_share_;  // held until the request is served
  std::optional<MessageWriter> writer_;   // the answer
  SendWindow send_window_;
  bool waits_for_grant_ = false;                // true while the answer waits for the caller
  std::shared_ptr<IncomingCall> self_reading_;  // set while a grant of the caller is being read
  Time answered_;                               // time of send()
  uint64_t sent_ = 0;                           // bytes of the answer

  // Time after which cancel_if_stalled() cancels the call.
  std::atomic<Time> progress_deadline_ = Time::max();

  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::stop_source> stop_ ABSL_GUARDED_BY(mutex_);  // created by stop_token()

  MemberTag<IncomingCall, &IncomingCall::on_accepted> accepted_{this};
  MemberTag<IncomingCall, &IncomingCall::on_read> read_{this};
  MemberTag<IncomingCall, &IncomingCall::on_grant_written> grant_written_{this};
  MemberTag<IncomingCall, &IncomingCall::on_written> written_{this};
  MemberTag<IncomingCall, &IncomingCall::on_grant_read> grant_read_{this};
  MemberTag<IncomingCall, &IncomingCall::on_finished> finished_{this};
  MemberTag<IncomingCall, &IncomingCall::on_done> done_{this};
};

}  // namespace trireme::internal
