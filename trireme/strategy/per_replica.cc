#include "trireme/strategy/per_replica.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme {

at::Tensor all_reduce(ReduceOp op, const at::Tensor& value) {
  return internal::all_reduce_replicas(internal::aggregation_of(op), value);
}

namespace internal {

void check_slices(size_t values, int replicas) {
  if (values == static_cast<size_t>(replicas)) return;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("a PerReplica argument of strategy.run() has ", values, " values for ",
                           replicas, " replicas; make it with one value for each replica"));
}

}  // namespace internal
}  // namespace trireme
