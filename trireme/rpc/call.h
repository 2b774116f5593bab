#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/rpc/message.h"
#include "trireme/rpc/retry.h"
#include "trireme/tensor/codec.h"

namespace trireme {

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
};

// The answer of a server, or the reason why there is none.
using Response = absl::StatusOr<Message>;
using OnResponse = absl::AnyInvocable<void(Response)>;

}  // namespace trireme
