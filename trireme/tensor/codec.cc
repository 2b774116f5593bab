#include "trireme/tensor/codec.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"
#include "trireme/tensor/host_copy.h"
#include "trireme/tensor/stream_copy.h"

// How a list of tensors is read.
//
// TensorReader is a state machine that accepts bytes in any pieces. In the table it collects one
// field at a time (the count, then for each tensor a head and its sizes) in `field_`, and checks
// every number against the limits before it allocates anything. The bytes come from the network, so
// none of these numbers is trusted. After the table it asks the admission for the sum of all
// tensors.
//
//   kCount -> kHead <-> kSizes -> (kPaused ->) kPayload -> kDone
//
// The payload goes to one tensor at a time. Memory for a tensor is allocated when its first bytes
// are due, not earlier, so a peer that declares much and sends little holds little. begin_payload()
// moves to the next tensor that has bytes; empty tensors are complete at once.

namespace trireme {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

namespace {

constexpr size_t kCountBytes = 4;
constexpr size_t kHeadBytes = 4;
// Tensors of at least this size, about that of a core's own cache, are written past the caches. New
// memory is excluded: the system clears its pages one by one as they are first written, which
// brings them into the cache anyway.
constexpr size_t kStreamFrom = 4 << 20;
// Every piece costs memory of its own and may keep 64 KiB of gRPC's alive. So a tensor is copied
// after all if its pieces are smaller than this on average, not counting the first kFewPieces.
constexpr size_t kSmallPiece = 4 << 10;
constexpr size_t kFewPieces = 64;

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T load(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

absl::Status malformed(const std::string& what) {
  return make_status(ErrorCode::kInvalidArgument, absl::StrCat("malformed tensors: ", what));
}

absl::Status too_large(const std::string& what, uint64_t asked, uint64_t limit) {
  return make_status(ErrorCode::kResourceExhausted,
                     absl::StrCat("refused: ", what, " is ", asked, ", the limit is ", limit));
}

}  // namespace

absl::StatusOr<at::Tensor> prepare_to_send(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return make_status(ErrorCode::kInvalidArgument, "an undefined tensor cannot be sent");
  }
  if (tensor.layout() != c10::kStrided) {
    return make_status(ErrorCode::kInvalidArgument,
                       "a sparse tensor cannot be sent as one; send its indices and values");
  }
  TRIREME_RETURN_IF_ERROR(dtype_to_wire(tensor.scalar_type()).status());
  return try_call([&]() -> at::Tensor {
    at::Tensor plain = tensor.detach();
    if (plain.is_conj()) plain = plain.resolve_conj();
    if (plain.is_neg()) plain = plain.resolve_neg();
    return copy_to_host(plain).contiguous();
  });
}

std::string encode_tensor_table(const std::vector<at::Tensor>& prepared) {
  std::string out;
  append<uint32_t>(out, prepared.size());
  for (const at::Tensor& tensor : prepared) {
    append<uint8_t>(out, *dtype_to_wire(tensor.scalar_type()));
    append<uint8_t>(out, tensor.dim());
    append<uint16_t>(out, 0);
    for (int64_t size : tensor.sizes()) append<int64_t>(out, size);
  }
  return out;
}

TensorReader::TensorReader(const TensorLimits& limits, BufferPool& pool, Admission* admission,
                           Destination destination)
    : limits_(limits), pool_(pool), admission_(admission), destination_(std::move(destination)) {}

absl::StatusOr<size_t> TensorReader::read(const uint8_t* data, size_t size,
                                          const std::shared_ptr<const void>& owner) {
  size_t used = 0;
  while (state_ != State::kDone && state_ != State::kPaused && used < size) {
    if (state_ == State::kPayload) {
      const size_t part = std::min<uint64_t>(tensors_.back().nbytes() - written_, size - used);
      TRIREME_RETURN_IF_ERROR(take_piece(data + used, part, owner));
      written_ += part;
      payload_read_ += part;
      used += part;
      if (written_ == tensors_.back().nbytes()) TRIREME_RETURN_IF_ERROR(begin_payload());
    } else {
      const size_t part = std::min(needed() - field_.size(), size - used);
      field_.append(reinterpret_cast<const char*>(data + used), part);
      used += part;
      if (field_.size() == needed()) TRIREME_RETURN_IF_ERROR(take_field());
    }
  }
  return used;
}

absl::Status TensorReader::take_piece(const uint8_t* data, size_t size,
                                      const std::shared_ptr<const void>& owner) {
  at::Tensor& tensor = tensors_.back();
  if (tensor.is_meta()) {
    ScatteredTensor& scattered = scattered_.back();
    scattered.append({data, size}, owner);
    if (scattered.pieces().size() <= kFewPieces + (written_ + size) / kSmallPiece) {
      return absl::OkStatus();
    }
    // There are too many small pieces: copy them. The bytes still to come are appended to the copy.
    TRIREME_ASSIGN_OR_RETURN(
        tensor, try_call([&] { return scattered.gather(tensor.sizes(), tensor.scalar_type()); }));
    scattered = {};
    return absl::OkStatus();
  }
  uint8_t* target = static_cast<uint8_t*>(tensor.data_ptr()) + written_;
  if (streams_) {
    stream_copy(target, data, size);
  } else {
    std::memcpy(target, data, size);
  }
  return absl::OkStatus();
}

size_t TensorReader::needed() const {
  switch (state_) {
    case State::kCount:
      return kCountBytes;
    case State::kHead:
      return kHeadBytes;
    default:
      return headers_.back().sizes.size() * sizeof(int64_t);
  }
}

absl::Status TensorReader::take_field() {
  const std::string field = std::exchange(field_, {});
  switch (state_) {
    case State::kCount:
      count_ = load<uint32_t>(field, 0);
      if (count_ > limits_.max_tensors) {
        return too_large("the number of tensors", count_, limits_.max_tensors);
      }
      state_ = State::kHead;
      return count_ == 0 ? table_done() : absl::OkStatus();
    case State::kHead: {
      TRIREME_ASSIGN_OR_RETURN(const c10::ScalarType dtype, dtype_from_wire(field[0]));
      const uint8_t rank = field[1];
      if (rank > limits_.max_rank) return too_large("a tensor's rank", rank, limits_.max_rank);
      if (load<uint16_t>(field, 2) != 0) return malformed("reserved bits are set");
      headers_.push_back({dtype, std::vector<int64_t>(rank), 0});
      state_ = State::kSizes;
      return rank == 0 ? finish_header() : absl::OkStatus();
    }
    default:
      std::memcpy(headers_.back().sizes.data(), field.data(), field.size());
      return finish_header();
  }
}

absl::Status TensorReader::finish_header() {
  Header& header = headers_.back();
  header.bytes = c10::elementSize(header.dtype);
  for (int64_t size : header.sizes) {
    if (size < 0) return malformed(absl::StrCat("a size of ", size));
    // A zero among the sizes makes the tensor empty. But LibTorch computes strides from the other
    // sizes, so their product must not overflow either.
    if (size > 1 && header.bytes > limits_.max_bytes / size) {
      return make_status(ErrorCode::kResourceExhausted,
                         absl::StrCat("refused: a tensor of shape ", format_shape(header.sizes),
                                      " and dtype ", dtype_name(header.dtype),
                                      " exceeds the limit of ", limits_.max_bytes, " bytes"));
    }
    if (size > 1) header.bytes *= size;
  }
  if (std::find(header.sizes.begin(), header.sizes.end(), 0) != header.sizes.end()) {
    header.bytes = 0;
  }
  total_bytes_ += header.bytes;
  if (total_bytes_ > limits_.max_bytes) {
    return too_large("the size of all tensors", total_bytes_, limits_.max_bytes);
  }
  state_ = State::kHead;
  return headers_.size() == count_ ? table_done() : absl::OkStatus();
}

absl::Status TensorReader::table_done() {
  if (admission_ != nullptr && total_bytes_ > Admission::kAdmissionThreshold) {
    TRIREME_RETURN_IF_ERROR(admission_->admit(total_bytes_));
  }
  if (!pauses_) return begin_payload();
  state_ = State::kPaused;
  return absl::OkStatus();
}

absl::Status TensorReader::resume() {
  pauses_ = false;
  return begin_payload();
}

at::Tensor TensorReader::choose_memory(const Header& header) {
  streams_ = false;
  if (header.bytes >= scatter_from_) {
    scattered_.resize(tensors_.size() + 1);
    return at::empty(header.sizes, at::TensorOptions(header.dtype).device(c10::kMeta));
  }
  if (destination_) {
    at::Tensor given = destination_(tensors_.size(), header.sizes, header.dtype);
    if (given.defined() && given.is_contiguous() && given.scalar_type() == header.dtype &&
        given.sizes() == c10::IntArrayRef(header.sizes)) {
      streams_ = header.bytes >= kStreamFrom;
      return given;
    }
  }
  bool reused = false;
  at::Tensor tensor = pool_.empty(header.sizes, header.dtype, &reused);
  streams_ = reused && header.bytes >= kStreamFrom;
  return tensor;
}

// Moves on to the next tensor that has bytes, and allocates its memory. Ends the list if there is
// none.
absl::Status TensorReader::begin_payload() {
  state_ = State::kPayload;
  while (tensors_.size() < headers_.size()) {
    const Header& header = headers_[tensors_.size()];
    auto tensor = try_call([&] { return choose_memory(header); });
    if (!tensor.ok()) {
      return make_status(
          ErrorCode::kResourceExhausted,
          absl::StrCat("not enough memory for a tensor of shape ", format_shape(header.sizes),
                       " and dtype ", dtype_name(header.dtype), ": ",
                       std::string(tensor.status().message())));
    }
    tensors_.push_back(*std::move(tensor));
    written_ = 0;
    if (header.bytes > 0) return absl::OkStatus();
  }
  state_ = State::kDone;
  return absl::OkStatus();
}

absl::StatusOr<std::string> encode_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> prepared;
  for (const at::Tensor& tensor : tensors) {
    TRIREME_ASSIGN_OR_RETURN(at::Tensor ready, prepare_to_send(tensor));
    prepared.push_back(std::move(ready));
  }
  std::string out = encode_tensor_table(prepared);
  for (const at::Tensor& tensor : prepared) {
    out.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  return out;
}

absl::StatusOr<std::vector<at::Tensor>> decode_tensors(const std::string& bytes,
                                                       const TensorLimits& limits) {
  TensorReader reader(limits);
  TRIREME_ASSIGN_OR_RETURN(
      const size_t used, reader.read(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
  if (!reader.done()) return malformed("the bytes end before the last tensor is complete");
  if (used < bytes.size()) return malformed(absl::StrCat(bytes.size() - used, " bytes too many"));
  return reader.take();
}

}  // namespace trireme
