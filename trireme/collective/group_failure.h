#pragma once

#include "absl/status/status.h"
#include "trireme/base/status.h"
#include "trireme/collective/collective.pb.h"

namespace trireme::internal {

// Convert between the cause of a group's failure and its message.
inline void set_failure(const absl::Status& cause, GroupFailure& failure) {
  failure.set_code(static_cast<int>(cause.code()));
  failure.set_message(std::string(cause.message()));
  failure.set_details(encode_error_details(cause));
}

// Returns an error in any case, so that a peer cannot declare that a group failed with OK.
inline absl::Status to_failure(const GroupFailure& failure) {
  const absl::Status cause = status_from_wire(static_cast<absl::StatusCode>(failure.code()),
                                              failure.message(), failure.details());
  return cause.ok() ? make_status(ErrorCode::kUnknown, failure.message()) : cause;
}

}  // namespace trireme::internal
