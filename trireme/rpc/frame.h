#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/rpc/message.h"
#include "trireme/tensor/codec.h"

// How a Message becomes bytes (docs/wire.md):
//
//   prefix   40 bytes: who sends, who is meant, which request, how long the body is
//   body     protobuf
//   tensors  a tensor list of tensor/codec.h; absent when the prefix says so
//
// The bytes are cut into frames, one gRPC message each. A cut may fall anywhere, so that a message
// has no size limit of its own and a frame's memory is small.
namespace trireme {

inline constexpr uint16_t kProtocolVersion = 2;

// The frame size that streams best here (docs/decisions/one-kind-of-call.md), and the largest that
// a receiver takes.
inline constexpr size_t kFrameBytes = 1 << 20;
inline constexpr size_t kMaxFrameBytes = 4 << 20;

// Threads that a process gives to calls, as a server and as a client each. A call costs some 25 µs
// of a core on either side, so a few threads keep any network busy; the other cores are for
// operators.
int default_rpc_threads();

struct Prefix {
  uint64_t request_id = 0;
  uint64_t sender = 0;     // incarnation of the one who sends
  uint64_t receiver = 0;   // incarnation that is meant; 0: whoever is there
  bool one_frame = false;  // the answer has to come in one frame
  uint16_t version = kProtocolVersion;
};

// What a receiver is willing to take in one message.
struct MessageLimits {
  uint64_t max_body_bytes = 64 << 20;
  TensorLimits tensors;
};

// A run of bytes to send: its own, or a part of a tensor's memory, which it keeps alive.
struct Piece {
  std::string bytes;
  at::Tensor tensor;
  size_t offset = 0;
  size_t size = 0;
};

// Cuts a message into frames. Large tensors are referred to, small ones copied, since a piece costs
// more than copying a few KiB. Not thread-safe.
class MessageWriter {
 public:
  static absl::StatusOr<MessageWriter> make(const Prefix& prefix, Message message);

  uint64_t bytes_left() const { return bytes_left_; }
  // At most max_bytes of what is left.
  std::vector<Piece> next_frame(size_t max_bytes);

 private:
  MessageWriter() = default;

  std::string head_;  // prefix, body and tensor table
  std::vector<at::Tensor> tensors_;
  size_t head_done_ = 0;
  size_t tensor_ = 0;  // the one that is being sent
  size_t tensor_done_ = 0;
  uint64_t bytes_left_ = 0;
};

// Puts a message together from its bytes as they arrive. Not thread-safe.
class MessageReader {
 public:
  explicit MessageReader(const MessageLimits& limits, Admission* admission = nullptr,
                         Destination destination = nullptr);

  // Returns the number of bytes taken: all, unless reading pauses. `owner` keeps them alive; a
  // reader that scatters needs one.
  absl::StatusOr<size_t> read(const uint8_t* data, size_t size,
                              const std::shared_ptr<const void>& owner = nullptr);

  // Stops read() before memory is taken for tensors.
  void pause_before_tensors() { tensors_.pause_after_table(); }
  bool paused() const { return tensors_.paused(); }
  absl::Status resume();
  // See TensorReader.
  void scatter_from(uint64_t bytes) { tensors_.scatter_from(bytes); }
  bool scatters() const { return tensors_.scatters(); }

  bool has_prefix() const { return state_ != State::kPrefix; }
  const Prefix& prefix() const { return prefix_; }
  bool done() const { return state_ == State::kDone; }
  // Of the tensors, once the table that declares them has been read; 0 before.
  uint64_t declared_bytes() const { return tensors_.declared_bytes(); }
  // The bytes of the whole message that are still to come, once their number is known.
  std::optional<uint64_t> bytes_left() const;
  const std::string& body() const { return body_; }  // once it pauses before the tensors
  Message take();
  std::vector<ScatteredTensor> take_scattered() { return tensors_.take_scattered(); }

 private:
  enum class State { kPrefix, kBody, kTensors, kDone };

  absl::Status parse_prefix();
  void after_body();

  const MessageLimits limits_;
  Admission* const admission_;
  State state_ = State::kPrefix;
  std::string prefix_bytes_;
  Prefix prefix_;
  uint64_t body_size_ = 0;
  bool has_tensors_ = false;
  std::string body_;
  TensorReader tensors_;
};

}  // namespace trireme
