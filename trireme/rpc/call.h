#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/rpc/message.h"
#include "trireme/rpc/retry.h"
#include "trireme/tensor/codec.h"

namespace trireme {

struct SharedPlaces;  // rpc/shared_message.h

// The tensors of a call that may be in memory which the client shares with the server, instead of
// travelling over the connection. Only channels whose server can open this memory use it
// (ChannelOptions::shared_memory), and only for methods without side effects of a repetition
// (Repeats::kHarmless).
struct CallSharing {
  // True to pass the tensors of the request in this way, if they are large. The method must permit
  // it (Method::shares). Not together with `answer`.
  bool request = false;
  // Places for tensors of the answer; null for none. If the server writes a tensor to its place,
  // the answer has the tensor that was offered. Otherwise it has another one.
  std::shared_ptr<const SharedPlaces> answer = nullptr;
};

// Options of one call.
struct CallOptions {
  // The call fails with DEADLINE_EXCEEDED if it is not answered by then.
  Time deadline = after(std::chrono::seconds(60));
  // Time by which the first frame from the server must have arrived, if that is sooner: for a
  // unary call the answer, for a streamed one the first frame of the answer or a grant. If the
  // server is lost after that, the connection's own pings detect it.
  Time first_frame_deadline = Time::max();
  // Incarnation that the call is meant for; 0 for the one found by the channel's last hello.
  uint64_t incarnation = 0;
  // True if the answer may be larger than kMaxFrameBytes; it is then streamed. A call without this
  // flag is cheaper, and a larger answer to it is an error.
  bool large_response = false;
  // True to wait until the deadline for a server that is not up yet, instead of failing at once.
  bool wait_for_ready = false;
  // Cancels the call.
  std::stop_token stop = {};
  // Memory for the answer's tensors; null for newly allocated memory. It must not be used before
  // the call has ended. If the call fails, its contents are undefined.
  Destination into = nullptr;
  // Policy by which the call is retried until the deadline if it may have been lost; nullopt for
  // no retries.
  std::optional<RetryPolicy> retry = std::nullopt;
  // Use of shared memory. A server that cannot open it answers UNAVAILABLE, so the call needs a
  // retry policy: its first attempt uses shared memory, and all others use the connection.
  CallSharing shared = {};
};

// The answer of a server, or the reason why there is none.
using Response = absl::StatusOr<Message>;
using OnResponse = absl::AnyInvocable<void(Response)>;

}  // namespace trireme
