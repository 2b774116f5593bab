#include "trireme/rpc/incoming_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"

// The life of a call on the server:
//
// 1. on_accepted() checks the number of calls, the method and the caller's role before a byte of
//    the request is read.
// 2. on_read() passes each frame to the reader and grants more bytes. Sizes that the request
//    declares are taken from the receive budget (admit()) before memory is allocated.
// 3. With an intake the reader pauses after the tensor table. If the rest of the request is in the
//    same frame, reading goes on: the memory is in use already. Otherwise the frame is held and
//    the intake is asked for room. While the call waits nothing is read, so the sender stops at
//    the end of what it was granted. The intake's callback starts the next read.
// 4. request_ended() opens shared memory of the caller, if the request uses it (shared_message.h),
//    and runs the handler, unless the request is a repetition (answer_cache.h).
// 5. write_next() writes the answer's frames as far as the caller has granted them, and
//    read_grant_of_caller() reads these grants meanwhile.
// 6. Every call ends with one Finish(), whose event, on_finished(), releases it.
//
// gRPC permits one read and one write of a call at a time. A grant is a write, so the answer waits
// until the grant is written. So does wait_for_admission(), which may send a stored answer at once.
//
// A call must live as long as gRPC may report an event of it. So it holds itself up to three times:
// self_ until on_finished(), self_done_ until on_done(), self_reading_ until on_grant_read().
namespace trireme::internal {
namespace {

// Smallest tensor that is left in pieces. A smaller one is still in the cache when its last byte
// has arrived, so copying it costs little.
constexpr uint64_t kScatterFrom = 4 << 20;

}  // namespace

void IncomingCall::accept(ServerCallContext& server, CallWatch* watch) {
  Gate::Pass alive = server.alive.enter();
  if (!alive) return;  // the server is stopping
  auto call = std::make_shared<IncomingCall>(server, std::move(alive), watch);
  call->self_ = call;
  call->context_.AsyncNotifyWhenDone(call->done_.start());
  server.grpc_service.RequestCall(&call->context_, &call->stream_, watch->queue(), watch->queue(),
                                  call->accepted_.start());
}

IncomingCall::IncomingCall(ServerCallContext& server, Gate::Pass alive, CallWatch* watch)
    : server_(server),
      alive_(std::move(alive)),
      watch_(watch),
      reader_(server.options.limits.message, this) {}

void IncomingCall::on_accepted(bool ok) {
  if (!ok) {  // the server is stopping; gRPC reports no further event of this call, not even done_
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
                                           " calls in flight, its limit; try again later")));
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
  if (registered_->serve_stream) {
    serving_ = Gate::Pass();  // a server that stops does not wait for streams
    return registered_->serve_stream(self_);
  }
  reading_since_ = arrived_;
  read_on();
}

absl::Status IncomingCall::admit(uint64_t bytes) {
  // The intake counts the tensors of its requests. They are only checked here, so that a request
  // that can never fit does not wait. The body comes before the intake and is counted here.
  const bool tensors = reader_.has_prefix();
  if (registered_->intake && tensors) return server_.receiving.check_alone(bytes);
  TRIREME_ASSIGN_OR_RETURN(ReceiveBudget::Share share,
                           server_.receiving.take(context_.peer(), bytes));
  shares_.push_back(std::move(share));
  return absl::OkStatus();
}

void IncomingCall::set_progress_deadline(Time since, uint64_t bytes) {
  const ServerLimits& limits = server_.options.limits;
  progress_deadline_.store(
      since + limits.transfer_time + std::chrono::seconds(bytes / limits.transfer_rate),
      std::memory_order_relaxed);
}

void IncomingCall::cancel_if_stalled(Time now) {
  if (now < progress_deadline_.load(std::memory_order_relaxed)) return;
  clear_progress_deadline();
  if (const auto suppressed = server_.refusals.admit()) {
    log_warning(server_.options.task, ": cancelled the call of ", method(), " from ",
                context_.peer(), ": the caller sent or took too few bytes for too long; ",
                received_, " bytes of its request had arrived");
  }
  context_.TryCancel();  // ends the read or write that is in progress
}

void IncomingCall::count_bytes_in(size_t bytes) const {
  if (registered_->stats.bytes_in != nullptr) registered_->stats.bytes_in->add(bytes);
}

void IncomingCall::on_read(bool ok) {
  held_back_ = false;
  if (!ok) {
    return end_request(
        make_status(ErrorCode::kInvalidArgument, "the request ended before it was complete"));
  }
  const size_t bytes = frame_.Length();
  count_bytes_in(bytes);
  received_ += bytes;
  receive_window_.took(bytes);
  const absl::Status status = take_frame();
  if (!status.ok() || reader_.done()) return end_request(status);
  if (reader_.paused()) {
    // wait_for_admission() may send a stored answer, which must not be written during a grant.
    asks_after_grant_ = writing_grant_;
    return asks_after_grant_ ? void() : wait_for_admission();
  }
  grant_more();
  read_on();
}

absl::Status IncomingCall::take_frame() {
  if (held_frame_.Valid()) TRIREME_RETURN_IF_ERROR(take_held_frame());  // the call was admitted
  TRIREME_ASSIGN_OR_RETURN(held_from_, read_frame(frame_, reader_));
  if (reader_.has_prefix()) TRIREME_RETURN_IF_ERROR(check_prefix(reader_.prefix()));
  if (!reader_.paused()) {
    frame_.Clear();
    return absl::OkStatus();
  }
  held_frame_.Swap(&frame_);
  // If the frame holds the rest of the request, waiting for the intake would save no memory.
  if (*reader_.bytes_left() > held_frame_.Length() - held_from_) return absl::OkStatus();
  return take_held_frame();
}

absl::Status IncomingCall::take_held_frame() {
  if (reader_.declared_bytes() >= kScatterFrom && registered_->scatters &&
      reader_.body().size() <= kMostAskedBody) {
    auto share = server_.scatter_budget->take(context_.peer(), reader_.declared_bytes());
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

void IncomingCall::wait_for_admission() {
  if (!self_done_) {
    return end_request(
        make_status(ErrorCode::kCancelled, "the caller gave up before the request was admitted"));
  }
  clear_progress_deadline();  // the caller waits for the server
  // Registered before it waits: meanwhile later requests of this caller may be answered and their
  // answers dropped, and the cache rejects a request that is older than a dropped one.
  if (registered_->repeats != Repeats::kHarmless) {
    const absl::StatusOr<bool> is_new = begin_once();
    if (!is_new.ok()) return end_request(is_new.status());
    if (!*is_new) return;  // the first attempt's answer is sent, and the rest is never read
  }
  held_back_ = true;
  admitted_bytes_ = reader_.declared_bytes();
  // The sender still has room for at least one frame, so the read that follows the admission ends
  // without another grant, and on_read() then grants more.
  const auto place = registered_->intake->ask(admitted_bytes_, [self = shared_from_this()] {
    self->reading_since_ = std::chrono::steady_clock::now();
    self->read_on();
  });
  if (!place) return;
  place_ = *place;
  // Tells the caller that its request has arrived. A caller that gets no frame for long takes the
  // call for lost and retries it. The grant permits nothing new.
  write_grant(kInitialGrantBytes);
}

void IncomingCall::read_on() {
  set_progress_deadline(reading_since_, received_);
  stream_.Read(&frame_, read_.start());
}

void IncomingCall::grant_more() {
  if (writing_grant_) return;  // on_grant_written() calls this again
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
  if (std::exchange(asks_after_grant_, false)) return wait_for_admission();
  if (ok && !held_back_) grant_more();
}

// gRPC permits one write at a time, so the answer waits for a grant that is being written.
void IncomingCall::end_request(absl::Status status) {
  request_status_ = std::move(status);
  if (!writing_grant_) request_ended();
}

void IncomingCall::request_ended() {
  clear_progress_deadline();
  shares_.clear();
  held_frame_.Clear();
  scattered_ = reader_.take_scattered();
  if (!request_status_->ok()) {
    if (answers_repetitions_) {  // CANCELLED: nothing was executed, so a retry may be executed
      server_.answers.finish(
          reader_.prefix().sender, reader_.prefix().request_id,
          make_status(ErrorCode::kCancelled, "the request did not arrive completely"));
    }
    return finish(*request_status_);
  }
  request_ = reader_.take();
  if (reader_.prefix().shared) {
    const absl::Status opened =
        open_shared_request(*server_.segments, server_.options.limits.message.tensors,
                            registered_->shares, request_, places_);
    if (!opened.ok()) return finish(opened);
  }
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
                                 " is executed only once, so the call must name the incarnation "
                                 "that it is meant for; call Channel::hello first"));
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
  // A handler that throws destroys its ServerCall, which answers the call. Only the log gets the
  // reason.
  if (!status.ok()) log_error(server_.options.task, ": ", method(), " threw: ", describe(status));
}

// Without certificates there are no roles. Then only trusted peers can reach the port
// (Credentials::check_bind).
absl::Status IncomingCall::check_role() {
  if (!server_.options.credentials.is_secure()) return absl::OkStatus();
  peer_ = peer_of(*context_.auth_context());
  if (peer_ && registered_->callers.contains(peer_->role)) return absl::OkStatus();
  absl::Status refusal;
  if (!peer_) {
    refusal = make_status(ErrorCode::kUnauthenticated,
                          absl::StrCat("rejected ", method(), " from the peer at ", context_.peer(),
                                       ": its certificate names no role; it needs one URI such as "
                                       "trireme://worker/0"));
  } else {
    refusal = make_status(
        ErrorCode::kPermissionDenied,
        absl::StrCat("rejected ", method(), " from ", peer_->name, " at ", context_.peer(),
                     ": only ", registered_->callers.to_string(), " may call it"));
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

absl::Status IncomingCall::check_prefix(const Prefix& prefix) const {
  if (prefix.shared && (registered_->repeats != Repeats::kHarmless || registered_->serve_stream)) {
    return invalid_argument(absl::StrCat(method(), " does not use shared memory"));
  }
  const uint64_t meant = prefix.receiver;
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
  if (admitted_bytes_ > 0) registered_->intake->leave(std::exchange(admitted_bytes_, 0));
}

void IncomingCall::send(absl::StatusOr<Message> response) {
  if (!response.ok()) return finish(response.status());
  leave_intake();
  const Prefix& asked = reader_.prefix();
  Prefix prefix{.request_id = asked.request_id,
                .sender = server_.options.incarnation,
                .receiver = asked.sender};
  if (!places_.empty()) places_.leave_in_place(prefix, *response);
  auto writer = MessageWriter::make(prefix, *std::move(response));
  if (!writer.ok()) return finish(writer.status());
  if (asked.one_frame && writer->bytes_left() > kMaxFrameBytes) {
    return finish(
        make_status(ErrorCode::kResourceExhausted,
                    absl::StrCat("the answer to ", method(), " has ", writer->bytes_left(),
                                 " bytes, but the caller takes one frame of at most ",
                                 kMaxFrameBytes, "; set CallOptions::large_response")));
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
  set_progress_deadline(answered_, sent_);
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
  // The first read of a grant starts here and not in send(), which may run on any thread: from the
  // first write on, all of the call's state belongs to the thread of its queue.
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
  if (!writer_) return;  // the answer was sent completely
  const auto granted = ok ? read_grant(frame_) : std::nullopt;
  frame_.Clear();
  if (!granted) {
    if (waited) return give_up();
    context_.TryCancel();  // makes the write in progress fail, and on_written() gives up
    return;
  }
  send_window_.grant(*granted);
  if (!send_window_.covers(sent_ + writer_->bytes_left())) read_grant_of_caller();
  if (waited) write_next();
}

// Ends a call whose caller is gone or does not keep to the protocol.
void IncomingCall::give_up() {
  clear_progress_deadline();
  stream_.Finish(grpc::Status::CANCELLED, finished_.start());
}

void IncomingCall::finish(const absl::Status& status) {
  leave_intake();
  if (!status.ok() && registered_ != nullptr && registered_->stats.errors != nullptr) {
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
    if (stop) stop->request_stop();  // without the lock, since it runs callbacks
    if (place_ > 0 && registered_->intake->withdraw(place_)) {
      admitted_bytes_ = 0;
      end_request(
          make_status(ErrorCode::kCancelled, "the caller gave up before the request was admitted"));
    }
  }
  self_done_.reset();
}

}  // namespace trireme::internal
