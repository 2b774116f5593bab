#include "trireme/rpc/message_stream.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/rpc/retrying_call.h"

namespace trireme::internal {

std::shared_ptr<MessageStream> MessageStream::open(const Target& target, const std::string& method,
                                                   const Prefix& prefix, CallQueue queue,
                                                   std::stop_token stop) {
  auto stream =
      std::make_shared<MessageStream>(target, method, prefix, std::move(queue), std::move(stop));
  stream->start();
  return stream;
}

std::shared_ptr<MessageStream> MessageStream::ended(const Target& target, const std::string& method,
                                                    const absl::Status& why) {
  auto stream =
      std::make_shared<MessageStream>(target, method, Prefix(), CallQueue(), std::stop_token());
  MutexLock lock(stream->mutex_);
  stream->ended_ = why;
  return stream;
}

MessageStream::MessageStream(const Target& target, const std::string& method, const Prefix& prefix,
                             CallQueue queue, std::stop_token stop)
    : target_(target), method_(method), prefix_(prefix), queue_(std::move(queue)) {
  if (stop.stop_possible()) on_stop_.emplace(stop, [this] { context_.TryCancel(); });
  if (queue_.ends.stop_possible()) {
    on_end_.emplace(queue_.ends, [this] { context_.TryCancel(); });
  }
}

void MessageStream::start() {
  context_.set_initial_metadata_corked(true);  // sent together with the first message
  stream_ = target_.stub->PrepareCall(&context_, method_, queue_.queue);
  stream_->StartCall(nullptr);
  self_reading_ = shared_from_this();
  stream_->Read(&frame_, read_tag_.start());
}

void MessageStream::send(Message message, OnTaken done) {
  auto writer = MessageWriter::make(prefix_, std::move(message));
  absl::Status status = writer.status();
  if (status.ok() && writer->bytes_left() > kMaxFrameBytes) {
    status = invalid_argument(absl::StrCat("a message of ", writer->bytes_left(),
                                           " bytes does not fit into a frame of the stream ",
                                           method_, "; send it with a call"));
  }
  if (status.ok()) {
    grpc::ByteBuffer frame = to_byte_buffer(writer->next_frame(writer->bytes_left()));
    MutexLock lock(mutex_);
    if (!ended_) {
      untaken_.emplace(++sent_, std::move(done));
      if (self_writing_) return unsent_.push_back(std::move(frame));
      self_writing_ = shared_from_this();
      stream_->Write(frame, written_tag_.start());
      return;
    }
    status = *ended_;
  }
  done(status);
}

void MessageStream::on_written(bool ok) {
  std::shared_ptr<MessageStream> self;
  MutexLock lock(mutex_);
  if (!ok) {  // Nothing more can be written. The read fails too, and ends the stream.
    unsent_.clear();
  } else if (!unsent_.empty()) {
    const grpc::ByteBuffer frame = std::move(unsent_.front());
    unsent_.pop_front();
    stream_->Write(frame, written_tag_.start());
    return;
  }
  self = std::move(self_writing_);
}

void MessageStream::on_read(bool ok) {
  if (!ok) return stream_->Finish(&grpc_status_, finished_tag_.start());
  const std::vector<uint64_t> numbers = read_numbers(frame_);
  frame_.Clear();
  stream_->Read(&frame_, read_tag_.start());
  std::vector<OnTaken> taken;
  {
    MutexLock lock(mutex_);
    for (const uint64_t number : numbers) {
      if (auto found = untaken_.extract(number)) taken.push_back(std::move(found.mapped()));
    }
  }
  for (const OnTaken& done : taken) done(absl::OkStatus());
}

void MessageStream::on_finished(bool) {
  const std::shared_ptr<MessageStream> self = std::move(self_reading_);
  on_stop_.reset();  // blocks while a cancellation is running, which uses the context
  on_end_.reset();
  const absl::Status status = outcome();
  std::map<uint64_t, OnTaken> untaken;
  {
    MutexLock lock(mutex_);
    ended_ = status;
    unsent_.clear();
    untaken.swap(untaken_);
  }
  for (const auto& [number, done] : untaken) done(status);
}

absl::Status MessageStream::outcome() const {
  const Origin origin = {target_.task, ""};
  if (made_by_peer(grpc_status_)) return as_answer(with_origin(from_grpc(grpc_status_), origin));
  return make_status(ErrorCode::kTaskUnreachable,
                     absl::StrCat("the stream ", method_, " to ",
                                  target_.task.empty() ? "the server" : target_.task, " at ",
                                  target_.address, " ended (", grpc_status_.error_message(),
                                  "); is the task running? Check with `trireme status`"),
                     origin);
}

}  // namespace trireme::internal
