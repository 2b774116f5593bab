#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure.h"

// The errors that a queue itself gives to closures and callers.
namespace trireme::internal {

inline std::string name_of(const Closure& closure) {
  return absl::StrCat("closure ", closure.sequence, " of function '", closure.function->name, "'");
}

inline absl::Status cancelled_closure(const Closure& closure) {
  return make_status(ErrorCode::kCancelled,
                     "it was cancelled because another closure failed, or the coordinator ended",
                     {"", name_of(closure)});
}

// Returns the error of a closure whose deadline has passed. `worker` is the task that has it; empty
// if it is queued.
inline absl::Status late_closure(const Closure& closure, const std::string& worker) {
  return make_status(ErrorCode::kDeadlineExceeded,
                     absl::StrCat("it was not done by its deadline; ",
                                  worker.empty() ? "no worker was up and free to run it"
                                                 : "it was in flight on this worker"),
                     {worker, name_of(closure)});
}

// Returns the error of a join() that timed out while `left` closures were queued or in flight.
inline absl::Status join_timed_out(size_t left) {
  return make_status(
      ErrorCode::kDeadlineExceeded,
      left > 0 ? absl::StrCat("join() timed out: ", left,
                              " closures are not done yet; they keep running")
               : "join() timed out: all closures are done, but a parameter server has not "
                 "confirmed yet that it rejects late updates; call join() again");
}

}  // namespace trireme::internal
