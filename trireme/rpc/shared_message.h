#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "trireme/rpc/call.h"
#include "trireme/rpc/frame.h"
#include "trireme/rpc/message.h"
#include "trireme/rpc/shared_region.h"

// Calls whose tensors do not travel over the connection, because the server maps the memory of the
// client. The source describes the protocol.
namespace trireme {

// Places in a shared region for tensors of an answer. Immutable.
struct SharedPlaces {
  std::shared_ptr<SharedRegion> region;
  std::map<size_t, at::Tensor> tensors;  // by their index in the answer; all lie in the region
};

namespace internal {

class SegmentCache;

// Smallest sum of tensors for which a request uses shared memory. Below it the copy through the
// connection costs little.
inline constexpr uint64_t kShareFrom = 256 << 10;
// Largest body that Method::shares and Method::scatters are asked about. They may parse it on a
// thread that serves other calls. Requests with larger bodies use no shared memory.
inline constexpr size_t kMostAskedBody = 1 << 20;
// Object in the origin of the error UNAVAILABLE with which a server says that it cannot open the
// caller's memory.
inline constexpr char kSharedMemoryObject[] = "shared memory";

// The client's side.

// Prepares a request for the shared memory that `shared` asks for: copies its tensors to a region,
// or offers places for the answer, and changes the prefix and the message. Returns the region that
// the server will use, or null if the request is to be sent as it is.
std::shared_ptr<SharedRegion> share_request(const CallSharing& shared, Prefix& prefix,
                                            Message& request);
// Adds the tensors that the server has written to their places to an answer whose prefix says
// `shared`. `offered` is null if the request offered none.
absl::Status take_shared_answer(const SharedPlaces* offered, Message& answer);

// The server's side.

// The places that a caller offers for tensors of the answer. The caller may read and write this
// memory at any time.
class OfferedPlaces {
 public:
  bool empty() const { return tensors_.empty(); }
  // Returns the place of the index-th tensor of the answer, or an undefined tensor if none of this
  // shape was offered.
  at::Tensor find(size_t index, c10::IntArrayRef sizes, c10::ScalarType dtype) const;
  // Removes the tensors that lie in their places from an answer, and tells the caller in its body.
  void leave_in_place(Prefix& prefix, Message& answer) const;

 private:
  friend absl::Status open_shared_request(
      SegmentCache& segments, const TensorLimits& limits,
      const std::function<bool(const std::string& body)>& may_share, Message& request,
      OfferedPlaces& places);

  std::map<size_t, at::Tensor> tensors_;  // by index
};

// Completes a request whose prefix says `shared`: removes the description from its body, adds the
// tensors that lie in the segment, and sets the places for the answer. Fails with UNAVAILABLE if
// the segment cannot be opened (kSharedMemoryObject), and with INVALID_ARGUMENT if the description
// is not valid or if `may_share` is null or returns false for the tensors.
absl::Status open_shared_request(SegmentCache& segments, const TensorLimits& limits,
                                 const std::function<bool(const std::string& body)>& may_share,
                                 Message& request, OfferedPlaces& places);

}  // namespace internal
}  // namespace trireme
