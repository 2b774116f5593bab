#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/tensor/buffer_pool.h"
#include "trireme/tensor/scattered_tensor.h"

// Tensors as bytes, on the wire and in files. A list of tensors is a table followed by the bytes of
// each tensor in turn, without gaps (docs/wire.md):
//
//   table    u32 number of tensors, then for each: u8 dtype, u8 rank, u16 zero, i64 sizes[rank]
//   payload  the elements of each tensor, row-major, little-endian
//
// Neither side copies more than once. The sender sends the tensor's own memory. The receiver copies
// the bytes into memory that the new tensor owns, or leaves them in the buffers they arrived in.
namespace trireme {

// Limits of what a receiver accepts. They are checked before memory is allocated.
struct TensorLimits {
  uint32_t max_tensors = 1 << 17;           // Even an empty tensor takes some hundred bytes.
  uint64_t max_bytes = uint64_t{64} << 30;  // Bytes of all tensors of one list.
  uint8_t max_rank = 64;
};

// Decides whether a receiver may allocate the memory that a message declares. Asked before the
// allocation, for declarations of more than kAdmissionThreshold bytes.
class Admission {
 public:
  static constexpr uint64_t kAdmissionThreshold = 4 << 20;

  virtual ~Admission() = default;
  virtual absl::Status admit(uint64_t bytes) = 0;
};

// Chooses the memory for the index-th tensor that arrives: returns a contiguous tensor of that
// shape and dtype to receive into, or an undefined tensor for new memory.
using Destination =
    std::function<at::Tensor(size_t index, c10::IntArrayRef sizes, c10::ScalarType dtype)>;

// Returns the tensor in the form in which it is sent: dense, on the CPU, contiguous. Does not copy
// a tensor that already has that form. Rejects tensors without plain bytes (sparse, quantized,
// undefined).
absl::StatusOr<at::Tensor> prepare_to_send(const at::Tensor& tensor);

// Encodes the table of tensors that prepare_to_send() returned.
std::string encode_tensor_table(const std::vector<at::Tensor>& prepared);

// Builds tensors from bytes that arrive in pieces of any size. Must not be used after an error. Not
// thread-safe. The pool and the admission must outlive it.
//
//   TensorReader reader(limits);
//   while (!reader.done()) TRIREME_RETURN_IF_ERROR(reader.read(next_piece(), ...).status());
//   std::vector<at::Tensor> tensors = reader.take();
class TensorReader {
 public:
  explicit TensorReader(const TensorLimits& limits, BufferPool& pool = BufferPool::shared(),
                        Admission* admission = nullptr, Destination destination = nullptr);

  // Consumes the bytes at the front of `data` that belong to the list and returns their number. It
  // is less than `size` only if the list is complete or reading pauses. `owner` keeps the bytes
  // alive; it is required if the reader scatters.
  absl::StatusOr<size_t> read(const uint8_t* data, size_t size,
                              const std::shared_ptr<const void>& owner = nullptr);

  // Makes read() stop after the table, before any memory is allocated for the tensors, until
  // resume() is called.
  void pause_after_table() { pauses_ = true; }
  bool paused() const { return state_ == State::kPaused; }
  absl::Status resume();
  // Leaves tensors of at least `bytes` in the pieces in which they arrive, unless the pieces are
  // very small. take() returns such a tensor on the meta device, take_scattered() its bytes.
  void scatter_from(uint64_t bytes) { scatter_from_ = bytes; }
  bool scatters() const { return scatter_from_ < UINT64_MAX; }

  // Returns true once all tensors have arrived.
  bool done() const { return state_ == State::kDone; }
  // Returns the bytes of all tensors once the table has been read; 0 before.
  uint64_t declared_bytes() const { return table_is_read() ? total_bytes_ : 0; }
  // Returns the bytes of the list that have not arrived yet, or nullopt before the table has been
  // read.
  std::optional<uint64_t> bytes_left() const {
    if (!table_is_read()) return std::nullopt;
    return total_bytes_ - payload_read_;
  }
  // Returns the tensors, once done() is true.
  std::vector<at::Tensor> take() { return std::move(tensors_); }
  // Returns the pieces of scattered tensors, indexed as take(). Shorter than take() if the last
  // tensors are not scattered.
  std::vector<ScatteredTensor> take_scattered() { return std::move(scattered_); }

 private:
  enum class State { kCount, kHead, kSizes, kPaused, kPayload, kDone };
  struct Header {
    c10::ScalarType dtype;
    std::vector<int64_t> sizes;
    uint64_t bytes;
  };

  bool table_is_read() const { return state_ >= State::kPaused; }
  size_t needed() const;
  absl::Status take_field();
  absl::Status finish_header();
  absl::Status table_done();
  absl::Status begin_payload();
  at::Tensor choose_memory(const Header& header);
  absl::Status take_piece(const uint8_t* data, size_t size,
                          const std::shared_ptr<const void>& owner);

  const TensorLimits limits_;
  BufferPool& pool_;
  Admission* const admission_;
  const Destination destination_;
  bool pauses_ = false;
  uint64_t scatter_from_ = UINT64_MAX;
  State state_ = State::kCount;
  std::string field_;  // Bytes read so far of the current field of the table.
  uint32_t count_ = 0;
  std::vector<Header> headers_;
  uint64_t total_bytes_ = 0;
  uint64_t payload_read_ = 0;
  std::vector<at::Tensor> tensors_;
  std::vector<ScatteredTensor> scattered_;
  bool streams_ = false;  // True if the last tensor is written with stream_copy().
  uint64_t written_ = 0;  // Bytes of the last tensor that have arrived.
};

// Encode and decode a whole list as one string. For small tensors and for files.
absl::StatusOr<std::string> encode_tensors(const std::vector<at::Tensor>& tensors);
absl::StatusOr<std::vector<at::Tensor>> decode_tensors(const std::string& bytes,
                                                       const TensorLimits& limits = {});

}  // namespace trireme
