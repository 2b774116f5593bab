#include "trireme/rpc/outgoing_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/rpc/retrying_call.h"
#include "trireme/rpc/shared_message.h"
#include "trireme/rpc/timer.h"

// On the wire a call is always a stream of frames each way (docs/wire.md). The client has two forms
// of it:
//
// - If the request fits one frame and the caller expects a small answer, it uses gRPC's unary form,
//   which sends the same bytes with one event instead of three. The prefix says so (one_frame), and
//   the server then answers in one frame, without grants.
// - Otherwise it uses a stream. Frames of the request are written as far as the server has granted
//   bytes. A read is always outstanding: until the answer begins it returns grants, and then frames
//   of the answer, for which this side writes grants. The stream therefore stays open for writing
//   until the server ends it.
//
// The end of a stream is a read that fails; then Finish() gets the status. Several operations may
// be outstanding, so events_ counts them, and the last event completes and deletes the call.
namespace trireme::internal {
namespace {

// Counts the contents only. The prefix and the tensor table come on top. The table has 4 bytes for
// each tensor and 8 for each of its dimensions. kMaxFrameBytes leaves 3 MiB for tables.
bool fits_one_frame(const Message& message) {
  size_t bytes = message.body.size();
  for (const at::Tensor& tensor : message.tensors) {
    if (tensor.defined()) bytes += tensor.nbytes();
  }
  return bytes <= kFrameBytes;
}

}  // namespace

void OutgoingCall::start(const Target& target, const std::string& method, const Prefix& prefix,
                         Message request, const CallOptions& options, CallQueue queue,
                         OnResponse on_response) {
  Prefix marked = prefix;
  std::shared_ptr<SharedRegion> region;
  if (*target.shares_memory) region = share_request(options.shared, marked, request);
  marked.one_frame = !options.large_response && fits_one_frame(request);
  auto writer = MessageWriter::make(marked, std::move(request));
  if (!writer.ok()) {
    on_response(with_origin(writer.status(), {target.task, method}));
    return;
  }
  auto* call = new OutgoingCall(target, method, options, marked.one_frame, std::move(queue),
                                std::move(on_response));
  call->region_ = std::move(region);
  if (marked.one_frame) {
    call->start_unary(*std::move(writer));
  } else {
    call->start_stream(*std::move(writer));
  }
}

OutgoingCall::OutgoingCall(const Target& target, const std::string& method,
                           const CallOptions& options, bool unary, CallQueue queue,
                           OnResponse on_response)
    : target_(target),
      method_(method),
      first_frame_deadline_(options.first_frame_deadline),
      stop_(options.stop),
      queue_(std::move(queue)),
      on_response_(std::move(on_response)),
      reader_(target.limits, /*admission=*/nullptr, options.into),
      places_(options.shared.answer) {
  context_.set_deadline(to_timespec(unary ? std::min(options.deadline, options.first_frame_deadline)
                                          : options.deadline));
  context_.set_wait_for_ready(options.wait_for_ready);
  if (options.stop.stop_possible()) {
    on_stop_.emplace(options.stop, [this] { context_.TryCancel(); });
  }
  if (queue_.ends.stop_possible()) {
    on_end_.emplace(queue_.ends, [this] { context_.TryCancel(); });
  }
}

void OutgoingCall::end_unless_heard_by(Time time) {
  timer_ = std::make_shared<Timer>();
  {
    MutexLock lock(timer_->mutex);
    timer_->call = this;
  }
  run_at(time, [timer = timer_] {
    MutexLock lock(timer->mutex);
    if (timer->call == nullptr || timer->call->heard_) return;
    timer->call->late_ = true;
    timer->call->context_.TryCancel();
  });
}

void OutgoingCall::start_unary(MessageWriter writer) {
  unary_ = target_.stub->PrepareUnaryCall(
      &context_, method_, to_byte_buffer(writer.next_frame(writer.bytes_left())), queue_.queue);
  unary_->StartCall();
  unary_->Finish(&frame_, &grpc_status_, unary_tag_.start());
}

void OutgoingCall::on_unary(bool) {
  if (grpc_status_.ok()) read_status_ = read_frame(frame_, reader_).status();
  complete();
}

void OutgoingCall::start_stream(MessageWriter writer) {
  writer_.emplace(std::move(writer));
  context_.set_initial_metadata_corked(true);  // sent together with the first frame
  stream_ = target_.stub->PrepareCall(&context_, method_, queue_.queue);
  stream_->StartCall(nullptr);
  if (first_frame_deadline_ != Time::max()) end_unless_heard_by(first_frame_deadline_);
  // Counts the read below already, since the event of the first write may come before it.
  events_ = 1;
  write_on();
  stream_->Read(&frame_, read_tag_.start());
}

void OutgoingCall::write_on() {
  if (writing_ || ended_) return;
  if (writer_) {
    const uint64_t bytes = std::min<uint64_t>(writer_->bytes_left(), kFrameBytes);
    if (!send_window_.has_room(bytes)) return;
    send_window_.sent(bytes);
    const grpc::ByteBuffer frame = to_byte_buffer(writer_->next_frame(bytes));
    if (writer_->bytes_left() == 0) writer_.reset();
    write(frame);
  } else if (grant_) {
    write(grant_frame(*std::exchange(grant_, std::nullopt)));
  }
}

void OutgoingCall::write(const grpc::ByteBuffer& frame) {
  writing_ = true;
  ++events_;
  stream_->Write(frame, written_tag_.start());
}

void OutgoingCall::on_written(bool ok) {
  writing_ = false;
  if (!ok) ended_ = true;  // the outstanding read fails as well
  write_on();
  event_done();
}

void OutgoingCall::on_read(bool ok) {
  if (!ok) {  // the end of the stream, or an error; the status says which
    ended_ = true;
    ++events_;
    stream_->Finish(&grpc_status_, finished_tag_.start());
    return event_done();
  }
  heard_ = true;
  // The next read starts before this frame is copied, so that the sender does not have to wait.
  grpc::ByteBuffer frame;
  frame.Swap(&frame_);
  stream_->Read(&frame_, read_tag_.start());
  if (!read_status_.ok()) return;  // the call was cancelled; reads go on until the stream ends
  if (!answer_began_) {
    if (const auto granted = read_grant(frame)) {
      send_window_.grant(*granted);
      return write_on();
    }
    answer_began_ = true;
  }
  read_status_ = read_frame(frame, reader_).status();
  if (!read_status_.ok()) return context_.TryCancel();
  receive_window_.took(frame.Length());
  if (const auto due = receive_window_.next_grant(reader_.bytes_left())) {
    grant_ = due;
    write_on();
  }
}

void OutgoingCall::on_finished(bool) {
  event_done();
}

void OutgoingCall::event_done() {
  if (--events_ == 0) complete();
}

void OutgoingCall::complete() {
  on_stop_.reset();  // blocks while a cancellation is running, which uses this call
  on_end_.reset();
  if (timer_) {
    MutexLock lock(timer_->mutex);
    timer_->call = nullptr;
  }
  OnResponse on_response = std::move(on_response_);
  absl::Status status = outcome();
  Response response = status.ok() ? take_answer() : Response(std::move(status));
  if (region_ != nullptr) end_sharing();
  delete this;  // releases the queue and the target before the callback runs
  on_response(std::move(response));
}

Response OutgoingCall::take_answer() {
  Message answer = reader_.take();
  if (!reader_.prefix().shared) return answer;
  const SharedPlaces* const offered = region_ == nullptr ? nullptr : places_.get();
  const absl::Status status = take_shared_answer(offered, answer);
  if (!status.ok()) return with_origin(status, {target_.task, method_});
  return answer;
}

void OutgoingCall::end_sharing() {
  const bool failed_by_peer = !grpc_status_.ok() && made_by_peer(grpc_status_);
  const bool answered = grpc_status_.ok() && read_status_.ok() && reader_.done();
  if (!answered && !failed_by_peer) region_->retire();
  if (!failed_by_peer) return;
  const absl::Status error = from_grpc(grpc_status_);
  if (error_code(error) != ErrorCode::kUnavailable ||
      error_origin(error).object != kSharedMemoryObject) {
    return;  // a server that is stopping is unavailable too
  }
  if (!target_.shares_memory->exchange(false)) return;
  log_info(target_.task, ": tensors do not go there through shared memory any more: ",
           grpc_status_.error_message());
}

absl::Status OutgoingCall::outcome() const {
  const Origin origin = {target_.task, ""};
  const std::string peer =
      absl::StrCat(target_.task.empty() ? "the server" : target_.task, " at ", target_.address);
  if (!read_status_.ok()) return with_origin(read_status_, {target_.task, method_});
  if (grpc_status_.ok()) {
    if (reader_.done()) return absl::OkStatus();
    return make_status(
        ErrorCode::kInternal,
        absl::StrCat("the answer of ", peer, " to ", method_, " ended before it was complete"),
        origin);
  }
  if (made_by_peer(grpc_status_)) return as_answer(with_origin(from_grpc(grpc_status_), origin));
  switch (late_ ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc_status_.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return make_status(ErrorCode::kDeadlineExceeded,
                         absl::StrCat("no answer from ", peer, " to ", method_,
                                      " before the deadline; the task is busy, stopped or cut off"),
                         origin);
    case grpc::StatusCode::CANCELLED:
      if (!stop_.stop_requested() && !queue_.ends.stop_requested()) {
        return make_status(ErrorCode::kTaskUnreachable,
                           absl::StrCat(peer, " cancelled the call of ", method_,
                                        " without an answer: it is stopping, or the call made no "
                                        "progress for too long; see its log"),
                           origin);
      }
      return make_status(ErrorCode::kCancelled,
                         absl::StrCat("the call of ", method_, " on ", peer, " was cancelled"),
                         origin);
    case grpc::StatusCode::UNAVAILABLE:
      return make_status(
          ErrorCode::kTaskUnreachable,
          absl::StrCat("cannot reach ", peer, " for ", method_, " (", grpc_status_.error_message(),
                       "); is the task running? Check with `trireme status`",
                       target_.secure ? ". It may also have rejected this side's certificate; see "
                                        "its log"
                                      : ""),
          origin);
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return make_status(ErrorCode::kTaskUnreachable,
                         absl::StrCat(peer, " cancelled the call of ", method_,
                                      " because its memory limit for unread requests is reached (",
                                      grpc_status_.error_message(), ")"),
                         origin);
    case grpc::StatusCode::UNIMPLEMENTED:
      return make_status(ErrorCode::kUnimplemented,
                         absl::StrCat(peer, " does not know ", method_,
                                      ": it is a gRPC server, but not a Trireme server"),
                         origin);
    default:
      return make_status(static_cast<ErrorCode>(grpc_status_.error_code()),
                         absl::StrCat(method_, " on ", peer, ": ", grpc_status_.error_message()),
                         origin);
  }
}

}  // namespace trireme::internal
