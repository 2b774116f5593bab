#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/status.h"
#include "trireme/collective/engine.h"

namespace trireme::internal {

#ifdef TRIREME_NCCL
// Makes an engine that uses NCCL, through LibTorch, on one GPU of each member: members on the same
// machine use its GPUs in the order of their ranks. Tensors in the memory of the CPU are copied to
// the GPU and back. The traffic of NCCL is not encrypted, so a group whose tasks have certificates
// is rejected. All members must call it, and all of them succeed or fail. The group must outlive
// the engine.
absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_nccl_engine(Group& group, Time deadline);
#else
// Returns an error: Trireme was built without TRIREME_NCCL.
inline absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_nccl_engine(Group&, Time) {
  return make_status(ErrorCode::kUnimplemented,
                     "Trireme was built without NCCL; build it with -DTRIREME_NCCL=ON and a "
                     "LibTorch that has NCCL, or use another implementation, such as RING");
}
#endif

}  // namespace trireme::internal
