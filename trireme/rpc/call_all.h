#pragma once

#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/rpc/call.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/message.h"

namespace trireme {

// One call of a fan-out.
struct TargetedCall {
  Channel* channel = nullptr;  // must live until call_all() has started the call
  Message request;
  CallOptions options;
};

// The responses, in the order of the calls.
using Responses = std::vector<Message>;
using OnResponses = absl::AnyInvocable<void(absl::StatusOr<Responses>)>;

// Calls a method on several tasks concurrently. Calls `done` once, when all have answered, with
// their responses or with the first error to arrive, which names its task. If `calls` is empty,
// calls `done` before it returns.
void call_all(const std::string& method, std::vector<TargetedCall> calls, OnResponses done);

// Does the same, but blocks until all have answered.
absl::StatusOr<Responses> call_all(const std::string& method, std::vector<TargetedCall> calls);

}  // namespace trireme
