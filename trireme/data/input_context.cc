#include "trireme/data/input_context.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme {

int64_t InputContext::get_per_replica_batch_size(int64_t global_batch_size) const {
  if (num_replicas_in_sync > 0 && global_batch_size % num_replicas_in_sync == 0) {
    return global_batch_size / num_replicas_in_sync;
  }
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("a global batch of ", global_batch_size, " cannot be divided among ",
                           num_replicas_in_sync, " replicas; make it a multiple of that number"));
}

}  // namespace trireme
