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

struct CallOptions {
  Time deadline = after(std::chrono::seconds(60));
  // By when the server must have been heard of, if that is sooner: a call in one frame each way
  // must have been answered, and of a streamed one the first frame of an answer or a grant must
  // have come. If the server is lost after that, the connection's own pings detect it.
  Time first_word = Time::max();
  // The incarnation that is meant. 0: the one that was there at the last hello.
  uint64_t incarnation = 0;
  // The answer may be larger than a frame and is streamed. A call without this flag is cheaper, and
  // its answer may have at most kMaxFrameBytes.
  bool large_response = false;
  // Wait until the deadline for a peer that is not up yet, instead of failing at once.
  bool wait_for_ready = false;
  std::stop_token stop = {};
  // Where the answer's tensors are to lie; none: in new memory. What is there must not be used
  // before the answer has come, and is anything if that is an error.
  Destination into = nullptr;
  // Repeats the call until the deadline when it may have been lost; none: it fails at once.
  std::optional<RetryPolicy> retry = std::nullopt;
};

using Response = absl::StatusOr<Message>;
using OnResponse = absl::AnyInvocable<void(Response)>;

}  // namespace trireme
