#include "trireme/rpc/incoming_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/rpc/incoming_call.h"

// A sender decides how many messages it sends before the first one is taken, so each message counts
// in a budget from its arrival until it is taken or dropped. Its share belongs to the message and
// not to the stream: a stream ends when the budget is exceeded, while its messages stay in memory,
// and its sender can open another one.
namespace trireme::internal {
namespace {

// Smallest tensor of a message that is left in pieces.
constexpr uint64_t kScatterMessagesFrom = 64 << 10;
// Memory that a message takes besides its bytes, estimated.
constexpr uint64_t kMessageOverhead = 1 << 10;
// Largest number of messages that were taken and whose numbers the sender has not read yet.
constexpr size_t kMostUnwritten = 1 << 20;

// Refuses memory for more than a frame can hold, since a message of a stream is one frame.
class OneFrameAdmission final : public Admission {
 public:
  absl::Status admit(uint64_t bytes) override {
    return invalid_argument(
        absl::StrCat("a frame of a stream must be a whole message; this one declares ", bytes,
                     " bytes, and a frame has at most ", kMaxFrameBytes));
  }
};
static_assert(Admission::kAdmissionThreshold <= kMaxFrameBytes);

// The shares of a message that was not taken yet. They may outlive the server.
struct UntakenShares {
  std::shared_ptr<ReceiveBudget> untaken_budget, scatter_budget;  // outlive the shares below
  ReceiveBudget::Share untaken;
  ReceiveBudget::Share scattered;  // nothing unless the message is in gRPC's memory

  void give_back() {
    untaken = {};
    scattered = {};
  }
};

}  // namespace

void IncomingStream::start(std::shared_ptr<IncomingCall> call, const StreamHandler& handler) {
  auto stream = std::make_shared<IncomingStream>(std::move(call), handler);
  stream->self_reading_ = stream;
  stream->call_->stream_.Read(&stream->frame_, stream->read_tag_.start());
}

IncomingStream::IncomingStream(std::shared_ptr<IncomingCall> call, const StreamHandler& handler)
    : call_(std::move(call)), handler_(handler) {}

void IncomingStream::on_read(bool ok) {
  std::shared_ptr<IncomingStream> self;
  grpc::ByteBuffer frame;
  {
    MutexLock lock(mutex_);
    if (!ok || finished_ || !error_.ok()) {  // an error may wait for a write to end
      reading_ = false;
      frame_.Clear();
      self = std::move(self_reading_);
      return move_on();
    }
    frame.Swap(&frame_);
    call_->stream_.Read(&frame_, read_tag_.start());
  }
  const absl::Status status = take_message(frame);
  if (!status.ok()) on_taken(0, status);
}

absl::Status IncomingStream::take_message(const grpc::ByteBuffer& frame) {
  const uint64_t number = ++received_;
  call_->count_bytes_in(frame.Length());
  const std::string sender = call_->context_.peer();
  ServerCallContext& server = call_->server_;
  auto shares = std::make_shared<UntakenShares>(server.untaken, server.scatter_budget);
  TRIREME_ASSIGN_OR_RETURN(shares->untaken,
                           server.untaken->take(sender, frame.Length() + kMessageOverhead));
  OneFrameAdmission admission;
  MessageReader reader(server.options.limits.message, &admission);
  if (auto share = server.scatter_budget->take(sender, frame.Length()); share.ok()) {
    reader.scatter_from(kScatterMessagesFrom);
    shares->scattered = *std::move(share);
  }
  TRIREME_RETURN_IF_ERROR(read_frame(frame, reader).status());
  if (!reader.done()) return invalid_argument("a frame of a stream must be a whole message");
  TRIREME_RETURN_IF_ERROR(call_->check_prefix(reader.prefix()));
  StreamMessage message;
  message.caller = reader.prefix().sender;
  message.peer = call_->peer();
  message.scattered = reader.take_scattered();
  message.message = reader.take();
  message.taken = [stream = weak_from_this(), number,
                   shares = std::move(shares)](const absl::Status& status) {
    shares->give_back();
    if (const auto self = stream.lock()) self->on_taken(number, status);
  };
  return try_call([&] { handler_(std::move(message)); });
}

void IncomingStream::on_taken(uint64_t number, const absl::Status& status) {
  MutexLock lock(mutex_);
  if (status.ok() && taken_.size() < kMostUnwritten) {
    taken_.push_back(number);
  } else if (error_.ok()) {
    error_ = status.ok() ? make_status(ErrorCode::kResourceExhausted,
                                       absl::StrCat("the sender has not read the numbers of ",
                                                    kMostUnwritten, " messages that were taken"))
                         : status;
  }
  move_on();
}

void IncomingStream::on_written(bool) {
  std::shared_ptr<IncomingStream> self;
  MutexLock lock(mutex_);
  writing_ = false;
  self = std::move(self_writing_);
  move_on();
}

void IncomingStream::move_on() {
  if (writing_ || finished_) return;
  if (!reading_ || !error_.ok()) {
    finished_ = true;
    call_->finish(error_);
  } else if (!taken_.empty()) {
    writing_ = true;
    self_writing_ = shared_from_this();
    call_->stream_.Write(frame_of_numbers(taken_), written_tag_.start());
    taken_.clear();
  }
}

}  // namespace trireme::internal
