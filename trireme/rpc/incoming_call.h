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
#include "trireme/rpc/server_options.h"
#include "trireme/rpc/service.h"

namespace trireme::internal {

struct MethodStats {
  Counter* calls = nullptr;
  Counter* errors = nullptr;
  Counter* bytes_in = nullptr;
  Counter* bytes_out = nullptr;
  Histogram* latency_us = nullptr;
};

struct RegisteredMethod {
  Roles callers;
  Repeats repeats;
  Handler handler;
  std::shared_ptr<ByteBudget> intake;
  std::function<bool(const std::string& body)> scatters;
  MethodStats stats;
};

// What all calls of a server share.
struct ServerContextOfCalls {
  explicit ServerContextOfCalls(RpcServerOptions given)
      : options(std::move(given)),
        receiving(options.limits.connection_receive_bytes, options.limits.receive_bytes),
        scatter_budget(options.limits.unread_bytes / 4, options.limits.unread_bytes / 4),
        answers(options.limits.remembered) {}

  const RpcServerOptions options;
  ReceiveBudget receiving;
  ReceiveBudget scatter_budget;  // of requests that stay in gRPC's memory until they are served
  AnswerCache answers;
  std::atomic<int> calls = 0;  // under way
  absl::flat_hash_map<std::string, RegisteredMethod> methods;
  grpc::AsyncGenericService grpc_service;
  RateLimit refusals{10, std::chrono::seconds(10)};  // lines of the log about peers refused
  Gate serving;                                      // calls that arrived and are not answered yet
  Gate alive;  // IncomingCalls: until none is left, gRPC may still report on one
};

// The server's side of one call, from its arrival to the last byte of its answer:
//
//   accept -> read frames -> handler -> write frames -> finished
//
// Between the frames of a large request grants are written, and between those of a large answer the
// caller's are read (flow_control.h).
//
// Events of one call come one at a time, on the thread of its queue; only respond(), the stop
// token and the intake, when it lets the call in, are of other threads. It lives until gRPC has no
// event of it left and nobody holds it.
class IncomingCall : public std::enable_shared_from_this<IncomingCall>,
                     public WatchedCall,
                     private Admission {
 public:
  // Waits for the next call on this queue, serves it, and waits for another one.
  static void accept(ServerContextOfCalls& server, CallWatch* watch);

  IncomingCall(ServerContextOfCalls& server, Gate::Pass alive, CallWatch* watch);

  const std::string& method() const { return context_.method(); }
  Message& request() { return request_; }
  std::vector<ScatteredTensor>& scattered() { return scattered_; }
  const Prefix& prefix() const { return reader_.prefix(); }
  const std::optional<Peer>& peer() const { return peer_; }
  Time deadline() const { return from_timespec(context_.raw_deadline()); }
  std::stop_token stop_token();
  void respond(absl::StatusOr<Message> response);

  void let_go_if_late(Time now) override;

 private:
  void on_accepted(bool ok);
  void on_read(bool ok);
  void on_grant_written(bool ok);
  void on_written(bool ok);
  void on_grant_read(bool ok);
  void on_finished(bool ok);
  void on_done(bool ok);

  void read_on();
  // Reads the frame that has come, and before it the rest of one that was held back.
  absl::Status take_frame();
  // Reads on where the reader has paused.
  absl::Status take_held_frame();
  void wait_for_turn();
  void leave_intake();
  void grant_more();
  void write_grant(uint64_t bytes);
  void end_request(absl::Status status);
  void request_ended();
  void serve();
  // For methods that are done once: false if an earlier attempt is under way or was answered; then
  // its answer is sent.
  absl::StatusOr<bool> begin_once();
  void send(absl::StatusOr<Message> response);
  void finish(const absl::Status& status);
  void write_next();
  void read_grant_of_caller();
  void give_up();
  absl::Status admit(uint64_t bytes) override;
  // The caller has the next move, and until when it has to be made.
  void expect_progress(Time since, uint64_t bytes);
  void expect_none() { late_at_.store(Time::max(), std::memory_order_relaxed); }

  absl::Status check_role();
  void log_refusal(const absl::Status& refusal);
  absl::Status check_prefix() const;

  ServerContextOfCalls& server_;
  const Gate::Pass alive_;  // the first member, so that it is left last
  CallWatch* const watch_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  std::shared_ptr<IncomingCall> self_;       // until the answer is out
  std::shared_ptr<IncomingCall> self_done_;  // until gRPC says that the call is over
  Gate::Pass serving_;
  const RegisteredMethod* registered_ = nullptr;
  bool counted_ = false;
  bool answers_repetitions_ = false;
  std::optional<Peer> peer_;
  Time arrived_;
  Time reading_since_;
  uint64_t received_ = 0;
  uint64_t let_in_ = 0;  // bytes of the request that its method's intake knows of
  uint64_t place_ = 0;   // in the line there
  std::vector<ReceiveBudget::Share> shares_;  // until the request is whole

  grpc::ByteBuffer frame_;
  grpc::ByteBuffer held_frame_;  // read up to this byte; the rest when the call is let in
  size_t held_from_ = 0;
  bool waits_to_ask_ = false;  // for its turn, until a grant is written
  bool held_back_ = false;     // until the first frame after it was let in
  MessageReader reader_;
  ReceiveWindow receive_window_;
  bool writing_grant_ = false;
  std::optional<absl::Status> request_status_;  // of the request, once no more of it is read
  Message request_;
  std::vector<ScatteredTensor> scattered_;
  ReceiveBudget::Share scattered_share_;  // until the request is served
  std::optional<MessageWriter> writer_;
  SendWindow send_window_;
  bool waits_for_grant_ = false;
  std::shared_ptr<IncomingCall> self_reading_;  // while a grant is being read
  Time answered_;
  uint64_t sent_ = 0;

  std::atomic<Time> late_at_ = Time::max();

  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::stop_source> stop_ ABSL_GUARDED_BY(mutex_);  // made when somebody asks for it

  MemberTag<IncomingCall, &IncomingCall::on_accepted> accepted_{this};
  MemberTag<IncomingCall, &IncomingCall::on_read> read_{this};
  MemberTag<IncomingCall, &IncomingCall::on_grant_written> grant_written_{this};
  MemberTag<IncomingCall, &IncomingCall::on_written> written_{this};
  MemberTag<IncomingCall, &IncomingCall::on_grant_read> grant_read_{this};
  MemberTag<IncomingCall, &IncomingCall::on_finished> finished_{this};
  MemberTag<IncomingCall, &IncomingCall::on_done> done_{this};
};

}  // namespace trireme::internal
