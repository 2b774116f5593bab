#pragma once

#include <functional>

#include "trireme/rpc/call.h"

namespace trireme::internal {

// Makes one attempt of a call. The attempt ends if no frame has arrived by the given time.
using Attempt = std::function<void(Time first_frame_deadline, OnResponse on_response)>;

// Returns true if a call with this error may not have been executed, or its answer may be lost.
bool is_retryable(const absl::Status& status);
// Marks an error as one that the server itself answered. If it says that another task could not be
// reached or was late, that is not a reason to call this server again.
[[nodiscard]] absl::Status as_answer(absl::Status status);

// Makes attempts until there is an answer or the deadline in `options` has passed. Calls back
// exactly once. `options.retry` must be set.
void call_with_retries(const CallOptions& options, Attempt attempt, OnResponse on_response);

}  // namespace trireme::internal
