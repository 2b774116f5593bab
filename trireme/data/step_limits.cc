#include "trireme/data/step_limits.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {

absl::Status check_count(const char* what, int64_t count, int64_t least) {
  if (count >= least) return absl::OkStatus();
  return invalid_argument(
      absl::StrCat("its ", what, " is ", count, "; it must be at least ", least));
}

absl::Status check_bytes(double bytes) {
  if (bytes <= kMostBytes) return absl::OkStatus();
  return make_status(ErrorCode::kResourceExhausted,
                     absl::StrCat("it would hold ", bytes, " bytes at once; at most ", kMostBytes,
                                  " are allowed; make its size smaller"));
}

}  // namespace trireme::internal
