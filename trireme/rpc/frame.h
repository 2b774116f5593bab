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
//   prefix   40 bytes: sender, receiver, request id, length of the body, flags
//   body     a serialized protobuf; a flag says that a description of shared memory precedes it
//   tensors  a tensor list of tensor/codec.h; absent unless a flag of the prefix is set
//
// The bytes are cut into frames, one gRPC message each. A cut may fall anywhere, so a message has
// no size limit of its own, and a frame takes little memory.
namespace trireme {

inline constexpr uint16_t kProtocolVersion = 4;

// The frame size that senders use, which streams best (docs/decisions/one-kind-of-call.md).
inline constexpr size_t kFrameBytes = 1 << 20;
// The largest frame that a receiver accepts. An answer to a unary call may use it.
inline constexpr size_t kMaxFrameBytes = 4 << 20;

// Returns the number of threads that a process uses for calls, as a server and again as a client: a
// quarter of the cores, from 1 to 4. A call costs about 25 µs of a core on either side, so a few
// threads keep any network busy. The other cores are for operators.
int default_rpc_threads();

// The header of a message.
struct Prefix {
  uint64_t request_id = 0;  // counts up for each sender; the answer repeats it
  uint64_t sender = 0;      // incarnation of the sender
  uint64_t receiver = 0;    // incarnation that is meant; 0 for any
  bool one_frame = false;   // true if the answer must come in one frame (unary call)
  bool shared = false;      // true if tensors are in shared memory (shared_message.h)
  uint16_t version = kProtocolVersion;
};

// Limits of what a receiver accepts in one message.
struct MessageLimits {
  uint64_t max_body_bytes = 64 << 20;
  TensorLimits tensors;
};

// A run of bytes to send: either `bytes`, or `size` bytes of the memory of `tensor` from `offset`
// on. The piece keeps the tensor alive.
struct Piece {
  std::string bytes;
  at::Tensor tensor;
  size_t offset = 0;
  size_t size = 0;
};

// Cuts a message into frames. Large tensors are sent from their own memory. Small ones are copied
// into the frame, since a piece costs more than copying a few KiB. Not thread-safe.
class MessageWriter {
 public:
  // Fails if a tensor cannot be sent (prepare_to_send in tensor/codec.h).
  static absl::StatusOr<MessageWriter> make(const Prefix& prefix, Message message);

  uint64_t bytes_left() const { return bytes_left_; }
  // Returns the next bytes of the message, at most `max_bytes`.
  std::vector<Piece> next_frame(size_t max_bytes);

 private:
  MessageWriter() = default;

  std::string head_;                 // prefix, body and tensor table
  std::vector<at::Tensor> tensors_;  // undefined where a tensor was sent
  size_t head_done_ = 0;             // bytes of head_ that were sent
  size_t tensor_ = 0;                // index of the tensor that is being sent
  size_t tensor_done_ = 0;           // bytes of that tensor that were sent
  uint64_t bytes_left_ = 0;
};

// Assembles a message from its bytes as they arrive. After an error it must not be used any more.
// Not thread-safe.
class MessageReader {
 public:
  // `admission` is asked before more than Admission::kAdmissionThreshold bytes are allocated for a
  // body or for tensors; null admits all. `destination` chooses the memory of the tensors; null
  // allocates it.
  explicit MessageReader(const MessageLimits& limits, Admission* admission = nullptr,
                         Destination destination = nullptr);

  // Reads the next bytes of the message and returns how many it used: all, unless reading pauses.
  // `owner` keeps the bytes alive, and is required by a reader that scatters.
  absl::StatusOr<size_t> read(const uint8_t* data, size_t size,
                              const std::shared_ptr<const void>& owner = nullptr);

  // Makes read() stop after the tensor table, before memory is allocated for tensors, until
  // resume() is called.
  void pause_before_tensors() { tensors_.pause_after_table(); }
  bool paused() const { return tensors_.paused(); }
  absl::Status resume();
  // Leaves large tensors in the pieces in which they arrive; see TensorReader::scatter_from.
  void scatter_from(uint64_t bytes) { tensors_.scatter_from(bytes); }
  bool scatters() const { return tensors_.scatters(); }

  bool has_prefix() const { return state_ != State::kPrefix; }
  const Prefix& prefix() const { return prefix_; }
  // Returns true once the message is complete.
  bool done() const { return state_ == State::kDone; }
  // Returns the bytes of all tensors once the table that declares them has been read; 0 before.
  uint64_t declared_bytes() const { return tensors_.declared_bytes(); }
  // Returns the number of bytes of the message that are still to come, or nullopt if it is not
  // known yet.
  std::optional<uint64_t> bytes_left() const;
  // Returns the body. Complete once reading has paused before the tensors.
  const std::string& body() const { return body_; }
  // Returns the message, once done.
  Message take();
  // Returns the tensors that were left in pieces; see TensorReader::take_scattered.
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
