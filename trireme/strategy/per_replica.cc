#include "trireme/strategy/per_replica.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme::internal {

void check_slices(size_t values, int replicas) {
  if (values == static_cast<size_t>(replicas)) return;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("a PerReplica argument of strategy.run() has ", values, " values for ",
                           replicas, " replicas; make it with one value for each replica"));
}

}  // namespace trireme::internal
