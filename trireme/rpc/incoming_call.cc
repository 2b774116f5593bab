#include "trireme/rpc/incoming_call.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"

namespace trireme::internal {

void IncomingCall::accept(ServerContextOfCalls& server, CallWatch* watch) {
  Gate::Pass alive = server.alive.enter();
  if (!alive) return;  // the server stops
  auto call = std::make_shared<IncomingCall>(server, std::move(alive), watch);
  call->self_ = call;
  call->context_.AsyncNotifyWhenDone(call->done_.start());
  server.grpc_service.RequestCall(&call->context_, &call->stream_, watch->queue(), watch->queue(),
                                  call->accepted_.start());
}

IncomingCall::IncomingCall(ServerContextOfCalls& server, Gate::Pass alive, CallWatch* watch)
    : server_(server),
      alive_(std::move(alive)),
      watch_(watch),
      reader_(server.options.limits.message, this) {}

void IncomingCall::on_accepted(bool ok) {
  if (!ok) {  // the server stops; gRPC will not report on this call again
    self_.reset();
    return;
  }
  self_done_ = self_;
  accept(server_, watch_);
  watch_->add(this);
  arrived_ = std::chrono::steady_clock::now();
  counted_ = true;
  if (server_.calls.fetch_add(1, std::memory_order_relaxed) >= server_.options.limits.calls) {
    return finish(make_status(ErrorCode::kResourceExhausted,
                              absl::StrCat("the server has ", server_.options.limits.calls,
                                           " calls under way, its limit; try again later")));
  }
  serving_ = server_.serving.enter();
  if (!serving_) {
    return finish(make_status(ErrorCode::kUnavailable, "the server is stopping"));
  }
  const auto found = server_.methods.find(context_.method());
  if (found == server_.methods.end()) {
    return finish(make_status(ErrorCode::kUnimplemented,
                              absl::StrCat("this server does not offer ", context_.method())));
  }
  registered_ = &found->second;
  if (registered_->stats.calls != nullptr) registered_->stats.calls->add();
  if (const absl::Status status = check_role(); !status.ok()) return finish(status);
  reading_since_ = arrived_;
  read_on();
}

absl::Status IncomingCall::admit(uint64_t bytes) {
  TRIREME_ASSIGN_OR_RETURN(ReceiveBudget::Share share,
                           server_.receiving.take(context_.peer(), bytes));
  shares_.push_back(std::move(share));
  return absl::OkStatus();
}

void IncomingCall::expect_progress(Time since, uint64_t bytes) {
  const ServerLimits& limits = server_.options.limits;
  late_at_.store(since + limits.transfer_time + std::chrono::seconds(bytes / limits.transfer_rate),
                 std::memory_order_relaxed);
}

void IncomingCall::let_go_if_late(Time now) {
  if (now < late_at_.load(std::memory_order_relaxed)) return;
  expect_none();
  if (const auto suppressed = server_.refusals.admit()) {
    log_warning(server_.options.task, ": let go of the caller of ", method(), " at ",
                context_.peer(), ", which sends or takes nothing; ", received_,
                " bytes of its request had arrived");
  }
  context_.TryCancel();  // ends the read or write that is waiting
}

void IncomingCall::on_read(bool ok) {
  if (!ok) {
    expect_none();
    return finish(make_status(ErrorCode::kInvalidArgument, "the request ends too early"));
  }
  if (registered_->stats.bytes_in != nullptr) registered_->stats.bytes_in->add(frame_.Length());
  received_ += frame_.Length();
  absl::Status status = read_frame(frame_, reader_);
  frame_.Clear();
  if (status.ok() && reader_.has_prefix()) status = check_prefix();
  if (!status.ok()) return finish(status);
  if (!reader_.done()) {
    if (registered_->intake && let_in_ == 0 && reader_.declared_bytes() > 0) {
      expect_none();  // it waits for us
      let_in_ = reader_.declared_bytes();
      return registered_->intake->ask(let_in_, [self = shared_from_this()] {
        self->reading_since_ = std::chrono::steady_clock::now();
        self->read_on();
      });
    }
    return read_on();
  }
  expect_none();
  shares_.clear();
  request_ = reader_.take();
  if (registered_->repeats == Repeats::kHarmless) return serve();
  if (const absl::Status refusal = serve_once(); !refusal.ok()) {
    log_refusal(refusal);
    finish(refusal);
  }
}

void IncomingCall::read_on() {
  expect_progress(reading_since_, received_);
  stream_.Read(&frame_, read_.start());
}

absl::Status IncomingCall::serve_once() {
  const Prefix& prefix = reader_.prefix();
  if (prefix.receiver == 0) {
    return make_status(ErrorCode::kFailedPrecondition,
                       absl::StrCat(method(),
                                    " is done once, so the call has to say which "
                                    "incarnation it is meant for: say hello first"));
  }
  TRIREME_ASSIGN_OR_RETURN(
      const AnswerCache::Found found,
      server_.answers.begin(
          prefix.sender, prefix.request_id, peer_ ? peer_->name : "",
          [self = shared_from_this()](const AnswerCache::Answer& answer) { self->send(answer); }));
  if (found == AnswerCache::Found::kNew) {
    answers_repetitions_ = true;
    serve();
  }
  return absl::OkStatus();
}

void IncomingCall::serve() {
  ServerCall call(shared_from_this());
  const absl::Status status = try_call([&] { registered_->handler(std::move(call)); });
  // A handler that throws has dropped its call, which answered it; the reason is for the log.
  if (!status.ok()) log_error(server_.options.task, ": ", method(), " threw: ", describe(status));
}

// Before a byte of the request is read. Without certificates there are no roles, and the port is
// reached by the trusted only (Credentials::check_bind).
absl::Status IncomingCall::check_role() {
  if (!server_.options.credentials.is_secure()) return absl::OkStatus();
  peer_ = peer_of(*context_.auth_context());
  if (peer_ && registered_->callers.contains(peer_->role)) return absl::OkStatus();
  absl::Status refusal;
  if (!peer_) {
    refusal = make_status(ErrorCode::kUnauthenticated,
                          absl::StrCat("refused ", method(), " to the peer at ", context_.peer(),
                                       ": its certificate names no role; it needs one URI such as "
                                       "trireme://worker/0"));
  } else {
    refusal =
        make_status(ErrorCode::kPermissionDenied,
                    absl::StrCat("refused ", method(), " to ", peer_->name, " at ", context_.peer(),
                                 ": it is for ", registered_->callers.to_string(), " only"));
  }
  log_refusal(refusal);
  return refusal;
}

void IncomingCall::log_refusal(const absl::Status& refusal) {
  if (const auto suppressed = server_.refusals.admit()) {
    log_warning(server_.options.task, ": ", std::string(refusal.message()),
                *suppressed > 0 ? absl::StrCat(" (and ", *suppressed, " more refusals)") : "");
  }
}

absl::Status IncomingCall::check_prefix() const {
  const uint64_t meant = reader_.prefix().receiver;
  if (meant == 0 || meant == server_.options.incarnation) return absl::OkStatus();
  return make_status(ErrorCode::kIncarnationChanged,
                     absl::StrCat("the call was meant for incarnation ", format_incarnation(meant),
                                  ", but the task was started again and is now incarnation ",
                                  format_incarnation(server_.options.incarnation)));
}

std::stop_token IncomingCall::stop_token() {
  MutexLock lock(mutex_);
  if (!stop_) {
    stop_.emplace();
    if (cancelled_) stop_->request_stop();
  }
  return stop_->get_token();
}

void IncomingCall::respond(absl::StatusOr<Message> response) {
  if (answers_repetitions_) {
    server_.answers.finish(reader_.prefix().sender, reader_.prefix().request_id, response);
  }
  send(std::move(response));
}

void IncomingCall::send(absl::StatusOr<Message> response) {
  if (!response.ok()) return finish(response.status());
  const Prefix& asked = reader_.prefix();
  auto writer = MessageWriter::make({.request_id = asked.request_id,
                                     .sender = server_.options.incarnation,
                                     .receiver = asked.sender},
                                    *std::move(response));
  if (!writer.ok()) return finish(writer.status());
  if (asked.one_frame && writer->bytes_left() > kMaxFrameBytes) {
    return finish(make_status(
        ErrorCode::kResourceExhausted,
        absl::StrCat("the answer to ", method(), " has ", writer->bytes_left(),
                     " bytes, but the caller takes one frame of at most ", kMaxFrameBytes)));
  }
  writer_.emplace(*std::move(writer));
  answered_ = std::chrono::steady_clock::now();
  if (registered_->stats.bytes_out != nullptr) {
    registered_->stats.bytes_out->add(writer_->bytes_left());
  }
  write_next();
}

void IncomingCall::write_next() {
  const bool last = reader_.prefix().one_frame || writer_->bytes_left() <= kFrameBytes;
  expect_progress(answered_, sent_);
  const grpc::ByteBuffer frame =
      to_byte_buffer(writer_->next_frame(last ? writer_->bytes_left() : kFrameBytes));
  sent_ += frame.Length();
  if (last) {
    stream_.WriteAndFinish(frame, grpc::WriteOptions(), grpc::Status::OK, finished_.start());
  } else {
    stream_.Write(frame, written_.start());
  }
}

void IncomingCall::on_written(bool ok) {
  if (ok) return write_next();
  // The caller is gone. Finishing releases the call.
  expect_none();
  stream_.Finish(grpc::Status::CANCELLED, finished_.start());
}

void IncomingCall::finish(const absl::Status& status) {
  if (registered_ != nullptr && registered_->stats.errors != nullptr) {
    registered_->stats.errors->add();
  }
  stream_.Finish(to_grpc(with_origin(status, {server_.options.task, ""})), finished_.start());
}

void IncomingCall::on_finished(bool) {
  watch_->remove(this);
  if (counted_) server_.calls.fetch_sub(1, std::memory_order_relaxed);
  if (registered_ != nullptr && registered_->stats.latency_us != nullptr) {
    const auto took = std::chrono::steady_clock::now() - arrived_;
    registered_->stats.latency_us->add(
        std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  }
  writer_.reset();
  if (let_in_ > 0) registered_->intake->leave(let_in_);
  serving_ = Gate::Pass();
  self_.reset();
}

void IncomingCall::on_done(bool) {
  if (context_.IsCancelled()) {
    std::optional<std::stop_source> stop;
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
      stop = stop_;
    }
    if (stop) stop->request_stop();  // outside the lock: it runs the callbacks of others
  }
  self_done_.reset();
}

}  // namespace trireme::internal

namespace trireme {

ServerCall::ServerCall(std::shared_ptr<internal::IncomingCall> call) : call_(std::move(call)) {}

ServerCall::~ServerCall() {
  if (call_) respond(make_status(ErrorCode::kInternal, "the call was dropped without an answer"));
}

const std::string& ServerCall::method() const {
  return call_->method();
}
Message& ServerCall::request() {
  return call_->request();
}
uint64_t ServerCall::request_id() const {
  return call_->prefix().request_id;
}
uint64_t ServerCall::caller() const {
  return call_->prefix().sender;
}
const std::optional<Peer>& ServerCall::peer() const {
  return call_->peer();
}
Time ServerCall::deadline() const {
  return call_->deadline();
}
std::stop_token ServerCall::stop_token() const {
  return call_->stop_token();
}
void ServerCall::respond(absl::StatusOr<Message> response) {
  std::exchange(call_, nullptr)->respond(std::move(response));
}

}  // namespace trireme
