#include "trireme/rpc/frame.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"

namespace trireme {
namespace {

constexpr uint32_t kMagic = 0x454d5254;  // "TRME"
constexpr uint16_t kHasTensors = 1;
constexpr uint16_t kOneFrame = 2;
constexpr uint16_t kShared = 4;
// Largest tensor that is copied into the frame instead of being sent from its own memory.
constexpr size_t kCopied = 16 << 10;

// The prefix on the wire. The first eight bytes keep their meaning in every version.
struct RawPrefix {
  uint32_t magic;
  uint16_t version;
  uint16_t flags;
  uint64_t request_id;
  uint64_t sender;
  uint64_t receiver;
  uint64_t body_size;
};
static_assert(sizeof(RawPrefix) == 40);

absl::Status malformed(const std::string& what) {
  return make_status(ErrorCode::kInvalidArgument, absl::StrCat("malformed message: ", what));
}

}  // namespace

int default_rpc_threads() {
  // Cached, since it is needed for every call and hardware_concurrency() reads a file.
  static const int threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 4);
  return threads;
}

absl::StatusOr<MessageWriter> MessageWriter::make(const Prefix& prefix, Message message) {
  MessageWriter writer;
  writer.tensors_.reserve(message.tensors.size());
  for (const at::Tensor& tensor : message.tensors) {
    TRIREME_ASSIGN_OR_RETURN(at::Tensor prepared, prepare_to_send(tensor));
    writer.bytes_left_ += prepared.nbytes();
    writer.tensors_.push_back(std::move(prepared));
  }
  RawPrefix raw = {};
  raw.magic = kMagic;
  raw.version = prefix.version;
  if (!message.tensors.empty()) raw.flags |= kHasTensors;
  if (prefix.one_frame) raw.flags |= kOneFrame;
  if (prefix.shared) raw.flags |= kShared;
  raw.request_id = prefix.request_id;
  raw.sender = prefix.sender;
  raw.receiver = prefix.receiver;
  raw.body_size = message.body.size();
  writer.head_.reserve(sizeof(raw) + message.body.size());
  writer.head_.append(reinterpret_cast<const char*>(&raw), sizeof(raw));
  writer.head_.append(message.body);
  if (!message.tensors.empty()) writer.head_.append(encode_tensor_table(writer.tensors_));
  writer.bytes_left_ += writer.head_.size();
  return writer;
}

std::vector<Piece> MessageWriter::next_frame(size_t max_bytes) {
  std::vector<Piece> frame;
  size_t left = max_bytes;
  const auto copy = [&](const char* data, size_t size) {
    if (frame.empty() || frame.back().tensor.defined()) frame.emplace_back();
    frame.back().bytes.append(data, size);
    frame.back().size += size;
    left -= size;
  };

  if (head_done_ < head_.size()) {
    const size_t part = std::min(left, head_.size() - head_done_);
    copy(head_.data() + head_done_, part);
    head_done_ += part;
  }
  while (left > 0 && tensor_ < tensors_.size()) {
    const at::Tensor& tensor = tensors_[tensor_];
    const size_t part = std::min<size_t>(left, tensor.nbytes() - tensor_done_);
    if (tensor.nbytes() <= kCopied) {
      copy(static_cast<const char*>(tensor.const_data_ptr()) + tensor_done_, part);
    } else {
      frame.push_back({{}, tensor, tensor_done_, part});
      left -= part;
    }
    tensor_done_ += part;
    if (tensor_done_ == tensor.nbytes()) {
      tensors_[tensor_++] = at::Tensor();  // a sent tensor is not held until the rest is sent
      tensor_done_ = 0;
    }
  }
  bytes_left_ -= max_bytes - left;
  return frame;
}

MessageReader::MessageReader(const MessageLimits& limits, Admission* admission,
                             Destination destination)
    : limits_(limits),
      admission_(admission),
      tensors_(limits.tensors, BufferPool::shared(), admission, std::move(destination)) {}

// The states follow each other within one call if `data` holds the end of one part and the
// beginning of the next. The body grows with the bytes that arrive; its declared size is never
// allocated ahead.
absl::StatusOr<size_t> MessageReader::read(const uint8_t* data, size_t size,
                                           const std::shared_ptr<const void>& owner) {
  size_t used = 0;
  if (state_ == State::kPrefix) {
    used = std::min(size, sizeof(RawPrefix) - prefix_bytes_.size());
    prefix_bytes_.append(reinterpret_cast<const char*>(data), used);
    if (prefix_bytes_.size() < sizeof(RawPrefix)) return used;
    TRIREME_RETURN_IF_ERROR(parse_prefix());
  }
  if (state_ == State::kBody) {
    const size_t part = std::min<uint64_t>(size - used, body_size_ - body_.size());
    body_.append(reinterpret_cast<const char*>(data + used), part);
    used += part;
    if (body_.size() == body_size_) after_body();
  }
  if (state_ == State::kTensors) {
    TRIREME_ASSIGN_OR_RETURN(const size_t part, tensors_.read(data + used, size - used, owner));
    used += part;
    if (tensors_.done()) state_ = State::kDone;
  }
  if (used < size && !paused()) return malformed(absl::StrCat(size - used, " bytes too many"));
  return used;
}

absl::Status MessageReader::resume() {
  TRIREME_RETURN_IF_ERROR(tensors_.resume());
  if (tensors_.done()) state_ = State::kDone;
  return absl::OkStatus();
}

absl::Status MessageReader::parse_prefix() {
  RawPrefix raw;
  std::memcpy(&raw, prefix_bytes_.data(), sizeof(raw));
  if (raw.magic != kMagic) return malformed("it does not begin as a Trireme message does");
  if (raw.version != kProtocolVersion) {
    return make_status(
        ErrorCode::kVersionMismatch,
        absl::StrCat("the peer speaks protocol version ", raw.version, ", this side speaks ",
                     kProtocolVersion, "; run the same Trireme release on every task"));
  }
  if (raw.body_size > limits_.max_body_bytes) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("rejected the message: its body of ", raw.body_size,
                                    " bytes exceeds the limit of ", limits_.max_body_bytes));
  }
  if (raw.flags & ~(kHasTensors | kOneFrame | kShared)) return malformed("reserved bits are set");
  if (admission_ != nullptr && raw.body_size > Admission::kAdmissionThreshold) {
    TRIREME_RETURN_IF_ERROR(admission_->admit(raw.body_size));
  }
  prefix_ = {.request_id = raw.request_id,
             .sender = raw.sender,
             .receiver = raw.receiver,
             .one_frame = (raw.flags & kOneFrame) != 0,
             .shared = (raw.flags & kShared) != 0,
             .version = raw.version};
  body_size_ = raw.body_size;
  has_tensors_ = raw.flags & kHasTensors;
  state_ = State::kBody;
  if (body_size_ == 0) after_body();
  return absl::OkStatus();
}

void MessageReader::after_body() {
  state_ = has_tensors_ ? State::kTensors : State::kDone;
}

std::optional<uint64_t> MessageReader::bytes_left() const {
  if (state_ == State::kPrefix) return std::nullopt;
  if (has_tensors_) return tensors_.bytes_left();
  return body_size_ - body_.size();
}

Message MessageReader::take() {
  return {std::move(body_), tensors_.take()};
}

}  // namespace trireme
