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
// Neither side copies more than once: the sender's bytes are the tensor's own memory, the receiver
// copies what arrives into memory that the new tensor owns, or leaves it where it arrived.
namespace trireme {

// What a receiver is willing to take. Checked before memory is taken for it.
struct TensorLimits {
  uint32_t max_tensors = 1 << 17;           // each takes some hundred bytes, be it ever so small
  uint64_t max_bytes = uint64_t{64} << 30;  // of all tensors of one list
  uint8_t max_rank = 64;
};

// Asked before the memory for what was declared is taken, if it is more than kAskFrom bytes.
class Admission {
 public:
  static constexpr uint64_t kAskFrom = 4 << 20;

  virtual ~Admission() = default;
  virtual absl::Status admit(uint64_t bytes) = 0;
};

// Where the index-th tensor that arrives is to lie: a contiguous tensor of that shape, or an
// undefined one for new memory.
using Destination =
    std::function<at::Tensor(size_t index, c10::IntArrayRef sizes, c10::ScalarType dtype)>;

// The tensor as it will be sent: dense, on the CPU, contiguous. Returns the very tensor when it is
// so already. Refuses what has no plain bytes (sparse, quantized, undefined), naming it.
absl::StatusOr<at::Tensor> prepare_to_send(const at::Tensor& tensor);

// The table of tensors that prepare_to_send returned.
std::string encode_tensor_table(const std::vector<at::Tensor>& prepared);

// Makes tensors from bytes as they arrive, in pieces of any size. After an error it is of no
// further use. Not thread-safe.
class TensorReader {
 public:
  explicit TensorReader(const TensorLimits& limits, BufferPool& pool = BufferPool::shared(),
                        Admission* admission = nullptr, Destination destination = nullptr);

  // Takes from the front of the bytes what belongs to the list and returns how many they were:
  // fewer than `size` only when the list is complete, or reading pauses. `owner` keeps the bytes
  // alive; a reader that scatters needs one.
  absl::StatusOr<size_t> read(const uint8_t* data, size_t size,
                              const std::shared_ptr<const void>& owner = nullptr);

  // Stops read() once the table has been read, before any memory is taken for the tensors.
  void pause_after_table() { pauses_ = true; }
  bool paused() const { return state_ == State::kPaused; }
  absl::Status resume();
  // Leaves tensors of at least so many bytes in the pieces in which they arrive, unless these are
  // very small. take() returns such a tensor on the meta device, take_scattered() its bytes.
  void scatter_from(uint64_t bytes) { scatter_from_ = bytes; }
  bool scatters() const { return scatter_from_ < UINT64_MAX; }

  bool done() const { return state_ == State::kDone; }
  // Of all tensors, once the table has been read; 0 before.
  uint64_t declared_bytes() const { return table_is_read() ? total_bytes_ : 0; }
  // Bytes of the list that are still to come, once the table has been read.
  std::optional<uint64_t> bytes_left() const {
    if (!table_is_read()) return std::nullopt;
    return total_bytes_ - payload_read_;
  }
  // The tensors, once done.
  std::vector<at::Tensor> take() { return std::move(tensors_); }
  // The pieces, by the number of the tensor. Shorter than take() if the last ones have none.
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
  std::string field_;  // bytes of the field that is being read
  uint32_t count_ = 0;
  std::vector<Header> headers_;
  uint64_t total_bytes_ = 0;
  uint64_t payload_read_ = 0;
  std::vector<at::Tensor> tensors_;
  std::vector<ScatteredTensor> scattered_;
  bool streams_ = false;  // into the last tensor
  uint64_t written_ = 0;  // of the last tensor
};

// A whole list in one string, and back: for what is small, and for files.
absl::StatusOr<std::string> encode_tensors(const std::vector<at::Tensor>& tensors);
absl::StatusOr<std::vector<at::Tensor>> decode_tensors(const std::string& bytes,
                                                       const TensorLimits& limits = {});

}  // namespace trireme
