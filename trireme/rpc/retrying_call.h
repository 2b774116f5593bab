#pragma once

#include <functional>

#include "trireme/rpc/call.h"

namespace trireme::internal {

// Makes one attempt, which ends unless the server was heard of by that time.
using Attempt = std::function<void(Time first_word, OnResponse on_response)>;

// Whether a call with this result may not have been done, or its answer was lost.
bool may_be_lost(const absl::Status& status);
// Marks an error as what the server itself answered: that somebody else could not be reached, or
// was late, is no reason to ask again.
[[nodiscard]] absl::Status as_answer(absl::Status status);

// Attempts until there is an answer or the options' deadline has come. Calls back exactly once.
void call_with_retries(const CallOptions& options, Attempt attempt, OnResponse on_response);

}  // namespace trireme::internal
