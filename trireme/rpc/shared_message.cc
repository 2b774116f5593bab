#include "trireme/rpc/shared_message.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/rpc/segment_cache.h"
#include "trireme/rpc/shared_message.pb.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/stream_copy.h"

// All shared memory belongs to the client, in both directions: it passes the tensors of a request
// in a region of its own, and offers places in a region for the tensors of the answer. So neither
// side counts references in shared memory, and nothing leaks when one of them is killed. The flag
// `shared` of the prefix says that the body begins with a description:
//
//   u32 size of the SharedPart, the SharedPart, the body of the method
//
// The tensors that it describes are not in the tensor list of the message.
//
// A server that has answered does not use the region any more. If a call ends without an answer,
// nobody knows, so the client never uses that memory again (SharedRegion::retire), and each attempt
// of a call that uses shared memory has a region of its own: only the first attempt does
// (Channel). The server cannot trust the memory to stay as it is. Dtypes and shapes are therefore
// in the message, and each method decides which tensors it reads from memory that may change while
// it is read (Method::shares).
namespace trireme::internal {
namespace {

// Largest description that is accepted, enough for ten thousand tensors. Parsing it takes far more
// memory than its bytes, and a thread that serves other calls.
constexpr size_t kMostPartBytes = 256 << 10;
// Smallest tensor that is copied past the caches.
constexpr size_t kStreamSharedFrom = 4 << 20;

absl::Status malformed_part(const std::string& what) {
  return invalid_argument(absl::StrCat("malformed message with shared memory: ", what));
}

void add_part(const SharedPart& part, Prefix& prefix, Message& message) {
  const uint32_t size = static_cast<uint32_t>(part.ByteSizeLong());
  std::string body(reinterpret_cast<const char*>(&size), sizeof(size));
  part.AppendToString(&body);
  body.append(message.body);
  message.body = std::move(body);
  prefix.shared = true;
}

absl::StatusOr<SharedPart> remove_part(Message& message) {
  uint32_t size = 0;
  std::string& body = message.body;
  if (body.size() < sizeof(size)) return malformed_part("its description is missing");
  std::memcpy(&size, body.data(), sizeof(size));
  if (size > kMostPartBytes || size > body.size() - sizeof(size)) {
    return malformed_part(absl::StrCat("a description of ", size, " bytes"));
  }
  SharedPart part;
  if (!part.ParseFromArray(body.data() + sizeof(size), static_cast<int>(size))) {
    return malformed_part("its description cannot be parsed");
  }
  body.erase(0, sizeof(size) + size);
  return part;
}

void describe_tensor(size_t index, const at::Tensor& tensor, const SharedRegion& region,
                     SharedTensor& proto) {
  proto.set_index(static_cast<uint32_t>(index));
  proto.set_dtype(*dtype_to_wire(tensor.scalar_type()));
  proto.mutable_sizes()->Add(tensor.sizes().begin(), tensor.sizes().end());
  proto.set_offset(region.offset_of(tensor));
}

// Copies the tensors of a request into a new region and returns their copies. Returns nothing if
// there is no memory for it, or if they cannot be sent, which the caller will find out.
std::vector<at::Tensor> copy_to_region(const std::vector<at::Tensor>& tensors,
                                       std::shared_ptr<SharedRegion>& region) {
  std::vector<at::Tensor> prepared;
  uint64_t bytes = 0, region_bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    auto ready = prepare_to_send(tensor);
    if (!ready.ok() || !dtype_to_wire(tensor.scalar_type()).ok()) return {};
    bytes += ready->nbytes();
    region_bytes += SharedRegion::padded(ready->nbytes());
    prepared.push_back(*std::move(ready));
  }
  if (bytes < kShareFrom) return {};
  auto taken = SharedRegion::take(region_bytes);
  if (!taken.ok()) return {};
  region = *std::move(taken);
  for (at::Tensor& tensor : prepared) {
    const at::Tensor copy = region->empty(tensor.sizes(), tensor.scalar_type());
    const size_t size = tensor.nbytes();
    if (size >= kStreamSharedFrom) {
      stream_copy(copy.data_ptr(), tensor.const_data_ptr(), size);
    } else if (size > 0) {
      std::memcpy(copy.data_ptr(), tensor.const_data_ptr(), size);
    }
    tensor = copy;
  }
  return prepared;
}

// Returns the tensor that a peer describes, at an offset that must be a multiple of `alignment` and
// of the element size. All numbers are checked.
absl::StatusOr<at::Tensor> tensor_in(const std::shared_ptr<SharedSegment>& segment,
                                     const SharedTensor& proto, const TensorLimits& limits,
                                     uint64_t alignment) {
  if (proto.dtype() > UINT8_MAX) return malformed_part(absl::StrCat("a dtype ", proto.dtype()));
  TRIREME_ASSIGN_OR_RETURN(const c10::ScalarType dtype,
                           dtype_from_wire(static_cast<uint8_t>(proto.dtype())));
  if (proto.sizes_size() > limits.max_rank) {
    return malformed_part(absl::StrCat("a tensor with ", proto.sizes_size(), " dimensions"));
  }
  uint64_t bytes = c10::elementSize(dtype), most = bytes;
  for (const int64_t size : proto.sizes()) {
    // The second product ignores zeros, so that the other sizes are checked as well.
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) ||
        __builtin_mul_overflow(most, std::max<uint64_t>(size, 1), &most) ||
        most > uint64_t{1} << 50) {
      return malformed_part(absl::StrCat("a tensor with a size of ", size));
    }
  }
  const uint64_t offset = proto.offset();
  if (offset % std::max<uint64_t>(alignment, c10::elementSize(dtype)) != 0 ||
      offset > segment->size() || bytes > segment->size() - offset) {
    return malformed_part(absl::StrCat("a tensor of ", bytes, " bytes at byte ", offset,
                                       " of a segment of ", segment->size(), " bytes"));
  }
  return at::from_blob(
      segment->data() + offset, c10::IntArrayRef(proto.sizes().data(), proto.sizes_size()),
      [segment](void*) {}, dtype);
}

}  // namespace

std::shared_ptr<SharedRegion> share_request(const CallSharing& shared, Prefix& prefix,
                                            Message& request) {
  if (request.body.size() > kMostAskedBody) return nullptr;
  SharedPart part;
  std::shared_ptr<SharedRegion> region;
  std::vector<at::Tensor> copies;
  if (shared.answer != nullptr) {
    region = shared.answer->region;
    for (const auto& [index, tensor] : shared.answer->tensors) {
      describe_tensor(index, tensor, *region, *part.add_places());
    }
  } else if (shared.request) {
    copies = copy_to_region(request.tensors, region);
    if (region == nullptr) return nullptr;
    for (size_t i = 0; i < copies.size(); ++i) {
      describe_tensor(i, copies[i], *region, *part.add_tensors());
    }
  } else {
    return nullptr;
  }
  part.set_segment(region->handle());
  if (part.ByteSizeLong() > kMostPartBytes) return nullptr;
  if (!copies.empty()) request.tensors.clear();
  add_part(part, prefix, request);
  return region;
}

absl::Status take_shared_answer(const SharedPlaces* offered, Message& answer) {
  TRIREME_ASSIGN_OR_RETURN(const SharedPart part, remove_part(answer));
  std::vector<at::Tensor> all;
  auto sent = answer.tensors.begin();
  for (const uint32_t index : part.in_place()) {
    while (all.size() < index && sent != answer.tensors.end()) all.push_back(std::move(*sent++));
    const bool known = offered != nullptr && offered->tensors.contains(index);
    if (!known || all.size() != index) {
      return malformed_part(absl::StrCat("tensor ", index, " has no place in the answer"));
    }
    all.push_back(offered->tensors.at(index));
  }
  std::move(sent, answer.tensors.end(), std::back_inserter(all));
  answer.tensors = std::move(all);
  return absl::OkStatus();
}

at::Tensor OfferedPlaces::find(size_t index, c10::IntArrayRef sizes, c10::ScalarType dtype) const {
  const auto found = tensors_.find(index);
  if (found == tensors_.end() || found->second.sizes() != sizes ||
      found->second.scalar_type() != dtype) {
    return {};
  }
  return found->second;
}

void OfferedPlaces::leave_in_place(Prefix& prefix, Message& answer) const {
  SharedPart part;
  std::vector<at::Tensor> sent;
  for (size_t i = 0; i < answer.tensors.size(); ++i) {
    const at::Tensor& tensor = answer.tensors[i];
    const auto place = tensors_.find(i);
    const bool in_place = place != tensors_.end() && tensor.defined() &&
                          place->second.sizes() == tensor.sizes() &&
                          place->second.data_ptr() == tensor.data_ptr();
    in_place ? part.add_in_place(static_cast<uint32_t>(i)) : sent.push_back(tensor);
  }
  if (part.in_place().empty()) return;
  answer.tensors = std::move(sent);
  add_part(part, prefix, answer);
}

absl::Status open_shared_request(SegmentCache& segments, const TensorLimits& limits,
                                 const std::function<bool(const std::string& body)>& may_share,
                                 Message& request, OfferedPlaces& places) {
  // Before the description is cut off, which moves the whole body.
  if (request.body.size() > sizeof(uint32_t) + kMostPartBytes + kMostAskedBody) {
    return malformed_part(absl::StrCat("a body of ", request.body.size(), " bytes"));
  }
  TRIREME_ASSIGN_OR_RETURN(const SharedPart part, remove_part(request));
  if (request.body.size() > kMostAskedBody) {
    return malformed_part(absl::StrCat("a body of ", request.body.size(), " bytes"));
  }
  if (static_cast<uint32_t>(part.tensors_size()) > limits.max_tensors ||
      static_cast<uint32_t>(part.places_size()) > limits.max_tensors) {
    return malformed_part("too many tensors");
  }
  if (part.tensors_size() > 0) {
    if (!request.tensors.empty()) return malformed_part("some of its tensors are not shared");
    if (!may_share || !may_share(request.body)) {
      return malformed_part("this request must carry its tensors itself");
    }
  }
  const auto opened = segments.open(part.segment());
  if (!opened.ok()) return with_origin(opened.status(), {.object = kSharedMemoryObject});
  const std::shared_ptr<SharedSegment>& segment = *opened;
  // Methods view the tensors of requests as other dtypes, so the offset must suit all of them.
  // Places are written as what they are, and may be slices of a larger tensor.
  for (const SharedTensor& proto : part.tensors()) {
    if (proto.index() != request.tensors.size()) return malformed_part("its tensors have gaps");
    TRIREME_ASSIGN_OR_RETURN(request.tensors.emplace_back(),
                             tensor_in(segment, proto, limits, SharedRegion::kAlignment));
  }
  for (const SharedTensor& proto : part.places()) {
    TRIREME_ASSIGN_OR_RETURN(places.tensors_[proto.index()],
                             tensor_in(segment, proto, limits, /*alignment=*/1));
  }
  return absl::OkStatus();
}

}  // namespace trireme::internal
