#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/rpc/channel.h"

namespace trireme {

// Asks which task and incarnation is at the other end of a channel, as Channel::hello does, without
// blocking. The channel does not remember the answer: its calls must name the incarnation
// themselves (CallOptions::incarnation). Calls back once, on a thread that serves many calls.
void say_hello(Channel& channel, const CallOptions& options,
               absl::AnyInvocable<void(absl::StatusOr<Hello>)> on_hello);

}  // namespace trireme
