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
  Channel* channel = nullptr;  // has to live until the call was started
  Message request;
  CallOptions options;
};

// The responses in the order of the calls.
using Responses = std::vector<Message>;
using OnResponses = absl::AnyInvocable<void(absl::StatusOr<Responses>)>;

// Calls a method of several tasks at once. Calls back once, when all have answered; the first error
// to arrive, which names its task, is then the result. Without calls that is at once.
void call_all(const std::string& method, std::vector<TargetedCall> calls, OnResponses done);

// Blocks.
absl::StatusOr<Responses> call_all(const std::string& method, std::vector<TargetedCall> calls);

}  // namespace trireme
