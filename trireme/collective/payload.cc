#include "trireme/collective/payload.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

// The bytes of a received payload lie where gRPC put them, which is seldom at an address that is a
// multiple of the element size, and LibTorch's operators need such an address. Sums of the usual
// types are therefore added by loops that read from any address. Everything else is copied to
// aligned memory, a block at a time, and combined there by LibTorch while it is in the cache. A
// block has less than the 32768 elements from which LibTorch uses several threads: starting them
// costs more than they save.
namespace trireme::internal {
namespace {

constexpr size_t kBlockBytes = 64 << 10;
constexpr int64_t kBlockElements = 16 << 10;

// Stores own + received in out. memcpy, since `received` may be unaligned; compilers turn it into
// plain loads.
template <typename T>
void add_unaligned(const T* __restrict own, const uint8_t* __restrict received, T* __restrict out,
                   int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, received + i * sizeof(T), sizeof(T));
    out[i] = own[i] + value;
  }
}
template <typename T>
void add_unaligned(T* __restrict sum, const uint8_t* __restrict received, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, received + i * sizeof(T), sizeof(T));
    sum[i] += value;
  }
}

template <typename T>
void add_block(const at::Tensor& own, int64_t first, const uint8_t* received, int64_t count,
               const at::Tensor& out) {
  const T* values = static_cast<const T*>(own.const_data_ptr()) + first;
  T* sums = static_cast<T*>(out.data_ptr()) + first;
  values == sums ? add_unaligned(sums, received, count)
                 : add_unaligned(values, received, sums, count);
}

// Returns true if combine_block() reads from any address.
bool takes_any_address(Reduction reduction, at::ScalarType dtype) {
  return (reduction == Reduction::kSum || reduction == Reduction::kMean) &&
         (dtype == at::kFloat || dtype == at::kDouble);
}

// Combines consecutive elements from `first` on.
void combine_block(Reduction reduction, const at::Tensor& own, int64_t first,
                   const uint8_t* received, int64_t count, const at::Tensor& out) {
  const at::ScalarType dtype = own.scalar_type();
  if (takes_any_address(reduction, dtype) && dtype == at::kFloat) {
    add_block<float>(own, first, received, count, out);
  } else if (takes_any_address(reduction, dtype)) {
    add_block<double>(own, first, received, count, out);
  } else {
    combine(reduction, own.narrow(0, first, count),
            at::from_blob(const_cast<uint8_t*>(received), {count}, dtype),
            out.narrow(0, first, count));
  }
}

bool is_scattered(const Parcel& parcel) {
  return parcel.payload.defined() && parcel.payload.is_meta();
}

// Combines a payload that is in pieces. Bytes that cannot be read where they lie are collected in
// `scratch`: a block, or just the element that two pieces share.
void combine_pieces(Reduction reduction, const at::Tensor& own, const ScatteredTensor& received,
                    const at::Tensor& out) {
  const size_t item = own.element_size();
  const bool any_address = takes_any_address(reduction, own.scalar_type());
  const size_t room = any_address ? item : std::min(kBlockBytes, kBlockElements * item);
  const at::Tensor scratch = at::empty({static_cast<int64_t>(room / item)}, own.options());
  auto* const collected = static_cast<uint8_t*>(scratch.data_ptr());
  size_t filled = 0;  // bytes in scratch
  int64_t done = 0;   // elements
  const auto use = [&](const uint8_t* data, size_t bytes) {
    const int64_t count = static_cast<int64_t>(bytes / item);
    combine_block(reduction, own, done, data, count, out);
    done += count;
  };
  for (ScatteredTensor::Piece piece : received.pieces()) {
    while (piece.size > 0) {
      const bool readable = any_address || reinterpret_cast<uintptr_t>(piece.data) % item == 0;
      size_t used;
      if (filled == 0 && readable && piece.size >= item) {
        used = std::min(kBlockElements, static_cast<int64_t>(piece.size / item)) * item;
        use(piece.data, used);
      } else {
        used = std::min(room - filled, piece.size);
        std::memcpy(collected + filled, piece.data, used);
        filled += used;
        if (filled == room) use(collected, std::exchange(filled, 0));
      }
      piece.data += used;
      piece.size -= used;
    }
  }
  if (filled > 0) use(collected, filled);
}

}  // namespace

bool payload_fits(const Parcel& parcel, const at::Tensor& place) {
  if (!parcel.payload.defined()) return place.numel() == 0;
  if (parcel.payload.scalar_type() != place.scalar_type()) return false;
  if (!is_scattered(parcel)) {
    return parcel.payload.numel() == place.numel() && parcel.payload.is_contiguous();
  }
  size_t bytes = 0;
  for (const ScatteredTensor::Piece& piece : parcel.scattered.pieces()) bytes += piece.size;
  return bytes == place.nbytes();
}

void copy_payload(const Parcel& parcel, const at::Tensor& out) {
  if (!parcel.payload.defined()) return;
  if (is_scattered(parcel)) {
    parcel.scattered.copy_to(out.data_ptr());
  } else {
    std::memcpy(out.data_ptr(), parcel.payload.const_data_ptr(), out.nbytes());
  }
}

void combine_payload(Reduction reduction, const at::Tensor& own, const Parcel& parcel,
                     const at::Tensor& out) {
  if (!parcel.payload.defined()) return;
  if (is_scattered(parcel)) return combine_pieces(reduction, own, parcel.scattered, out);
  combine_blocks(reduction, own, parcel.payload, out);
}

void combine_blocks(Reduction reduction, const at::Tensor& own, const at::Tensor& received,
                    const at::Tensor& out) {
  const auto* data = static_cast<const uint8_t*>(received.const_data_ptr());
  for (int64_t done = 0; done < own.numel(); done += kBlockElements) {
    combine_block(reduction, own, done, data + done * own.element_size(),
                  std::min(kBlockElements, own.numel() - done), out);
  }
}

}  // namespace trireme::internal
