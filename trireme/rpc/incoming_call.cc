#include "trireme/rpc/incoming_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"

namespace trireme::internal {
namespace {

// A smaller tensor is still in the cache when the last of it has come, so that to copy it costs
// little.
constexpr uint64_t kScatterFrom = 4 << 20;
// The largest body that is looked into for that: this thread has other calls to serve.
constexpr size_t kScatterBody = 1 << 20;

}  // namespace

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
  if (registered_->intake) reader_.pause_before_tensors();
  if (registered_->stats.calls != nullptr) registered_->stats.calls->add();
  if (const absl::Status status = check_role(); !status.ok()) return finish(status);
  reading_since_ = arrived_;
  read_on();
}

absl::Status IncomingCall::admit(uint64_t bytes) {
  // The tensors of a request that waits at an intake hold no memory yet, and those of one that was
  // let in are counted there. The body, which comes before, has to be counted here.
  const bool tensors = reader_.has_prefix();
  if (registered_->intake && tensors) return server_.receiving.check_alone(bytes);
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
  held_back_ = false;
  if (!ok) {
    return end_request(make_status(ErrorCode::kInvalidArgument, "the request ends too early"));
  }
  const size_t bytes = frame_.Length();
  if (registered_->stats.bytes_in != nullptr) registered_->stats.bytes_in->add(bytes);
  received_ += bytes;
  receive_window_.took(bytes);
  const absl::Status status = take_frame();
  if (!status.ok() || reader_.done()) return end_request(status);
  if (reader_.paused()) {
    waits_to_ask_ = writing_grant_;  // an answer that is there already could not be written
    return waits_to_ask_ ? void() : wait_for_turn();
  }
  grant_more();
  read_on();
}

absl::Status IncomingCall::take_frame() {
  if (held_frame_.Valid()) TRIREME_RETURN_IF_ERROR(take_held_frame());  // the call was let in
  TRIREME_ASSIGN_OR_RETURN(held_from_, read_frame(frame_, reader_));
  if (reader_.has_prefix()) TRIREME_RETURN_IF_ERROR(check_prefix());
  if (!reader_.paused()) {
    frame_.Clear();
    return absl::OkStatus();
  }
  held_frame_.Swap(&frame_);
  // All of it is here: to hold it back would save nothing.
  if (*reader_.bytes_left() > held_frame_.Length() - held_from_) return absl::OkStatus();
  return take_held_frame();
}

absl::Status IncomingCall::take_held_frame() {
  if (reader_.declared_bytes() >= kScatterFrom && registered_->scatters &&
      reader_.body().size() <= kScatterBody) {
    auto share = server_.scatter_budget.take(context_.peer(), reader_.declared_bytes());
    if (share.ok() && registered_->scatters(reader_.body())) {
      scattered_share_ = *std::move(share);
      reader_.scatter_from(kScatterFrom);
    }
  }
  TRIREME_RETURN_IF_ERROR(reader_.resume());
  TRIREME_RETURN_IF_ERROR(read_frame(held_frame_, reader_, held_from_).status());
  held_frame_.Clear();
  return absl::OkStatus();
}

void IncomingCall::wait_for_turn() {
  if (!self_done_) {
    return end_request(make_status(ErrorCode::kCancelled, "the caller did not wait for its turn"));
  }
  expect_none();  // it waits for us
  // Before it waits: later requests may be answered, and their answers dropped, in the meantime.
  if (registered_->repeats != Repeats::kHarmless) {
    const absl::StatusOr<bool> is_new = begin_once();
    if (!is_new.ok()) return end_request(is_new.status());
    if (!*is_new) return;  // the answer of the first attempt is sent, and the rest never read
  }
  held_back_ = true;
  let_in_ = reader_.declared_bytes();
  // The sender may send at least one more frame without another grant, and with that the next grant
  // comes.
  const auto place = registered_->intake->ask(let_in_, [self = shared_from_this()] {
    self->reading_since_ = std::chrono::steady_clock::now();
    self->read_on();
  });
  if (!place) return;
  place_ = *place;
  // A caller that hears nothing for long takes its call for lost and sends it again.
  write_grant(kUngranted);
}

void IncomingCall::read_on() {
  expect_progress(reading_since_, received_);
  stream_.Read(&frame_, read_.start());
}

void IncomingCall::grant_more() {
  if (writing_grant_) return;  // its end asks again
  if (const auto due = receive_window_.next_grant(reader_.bytes_left())) write_grant(*due);
}

void IncomingCall::write_grant(uint64_t bytes) {
  if (writing_grant_) return;
  writing_grant_ = true;
  stream_.Write(grant_frame(bytes), grant_written_.start());
}

void IncomingCall::on_grant_written(bool ok) {
  writing_grant_ = false;
  if (request_status_) return request_ended();
  if (std::exchange(waits_to_ask_, false)) return wait_for_turn();
  if (ok && !held_back_) grant_more();
}

// gRPC takes one write at a time, so the answer waits for a grant that is on its way.
void IncomingCall::end_request(absl::Status status) {
  request_status_ = std::move(status);
  if (!writing_grant_) request_ended();
}

void IncomingCall::request_ended() {
  expect_none();
  shares_.clear();
  held_frame_.Clear();
  scattered_ = reader_.take_scattered();
  if (!request_status_->ok()) {
    if (answers_repetitions_) {  // nothing was done
      server_.answers.finish(reader_.prefix().sender, reader_.prefix().request_id,
                             make_status(ErrorCode::kCancelled, "the request did not arrive"));
    }
    return finish(*request_status_);
  }
  request_ = reader_.take();
  if (registered_->repeats == Repeats::kHarmless || answers_repetitions_) return serve();
  const absl::StatusOr<bool> is_new = begin_once();
  if (!is_new.ok()) return finish(is_new.status());
  if (*is_new) return serve();
  request_ = {};
}

absl::StatusOr<bool> IncomingCall::begin_once() {
  const Prefix& prefix = reader_.prefix();
  if (prefix.receiver == 0) {
    const absl::Status refusal =
        make_status(ErrorCode::kFailedPrecondition,
                    absl::StrCat(method(),
                                 " is done once, so the call has to say which incarnation it is "
                                 "meant for: say hello first"));
    log_refusal(refusal);
    return refusal;
  }
  auto found = server_.answers.begin(
      prefix.sender, prefix.request_id, peer_ ? peer_->name : "",
      [self = shared_from_this()](const AnswerCache::Answer& answer) { self->send(answer); });
  if (!found.ok()) {
    log_refusal(found.status());
    return found.status();
  }
  return answers_repetitions_ = *found == AnswerCache::Found::kNew;
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

void IncomingCall::leave_intake() {
  scattered_.clear();
  scattered_share_ = {};
  if (let_in_ > 0) registered_->intake->leave(std::exchange(let_in_, 0));
}

void IncomingCall::send(absl::StatusOr<Message> response) {
  if (!response.ok()) return finish(response.status());
  leave_intake();
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
  const bool whole = reader_.prefix().one_frame;
  const uint64_t bytes =
      whole ? writer_->bytes_left() : std::min<uint64_t>(writer_->bytes_left(), kFrameBytes);
  expect_progress(answered_, sent_);
  if (!whole && !send_window_.has_room(bytes)) {
    waits_for_grant_ = true;
    return;
  }
  send_window_.sent(bytes);
  sent_ += bytes;
  const grpc::ByteBuffer frame = to_byte_buffer(writer_->next_frame(bytes));
  if (writer_->bytes_left() == 0) {
    stream_.WriteAndFinish(frame, grpc::WriteOptions(), grpc::Status::OK, finished_.start());
  } else {
    stream_.Write(frame, written_.start());
  }
}

void IncomingCall::on_written(bool ok) {
  if (!ok) return give_up();
  // Asked for here, not when the answer begins: from the first write on, events come on one thread.
  if (!self_reading_ && !send_window_.covers(sent_ + writer_->bytes_left())) read_grant_of_caller();
  write_next();
}

void IncomingCall::read_grant_of_caller() {
  self_reading_ = shared_from_this();
  stream_.Read(&frame_, grant_read_.start());
}

void IncomingCall::on_grant_read(bool ok) {
  const std::shared_ptr<IncomingCall> self = std::move(self_reading_);
  const bool waited = std::exchange(waits_for_grant_, false);
  if (!writer_) return;  // the answer is out
  const auto granted = ok ? read_grant(frame_) : std::nullopt;
  frame_.Clear();
  if (!granted) {
    if (waited) return give_up();
    context_.TryCancel();  // the write that is under way ends then
    return;
  }
  send_window_.grant(*granted);
  if (!send_window_.covers(sent_ + writer_->bytes_left())) read_grant_of_caller();
  if (waited) write_next();
}

// The caller is gone, or does not keep to the protocol. Finishing releases the call.
void IncomingCall::give_up() {
  expect_none();
  stream_.Finish(grpc::Status::CANCELLED, finished_.start());
}

void IncomingCall::finish(const absl::Status& status) {
  leave_intake();
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
    if (place_ > 0 && registered_->intake->withdraw(place_)) {
      let_in_ = 0;
      end_request(make_status(ErrorCode::kCancelled, "the caller did not wait for its turn"));
    }
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
std::vector<ScatteredTensor>& ServerCall::scattered() {
  return call_->scattered();
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
