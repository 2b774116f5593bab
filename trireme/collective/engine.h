#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "trireme/collective/call.h"
#include "trireme/collective/group.h"

namespace trireme::internal {

// Moves and combines tensors between the members of a group. Used by one thread at a time. The
// implementations are ring_engine.h, shm_engine.h, hierarchy_engine.h, gloo_engine.h and
// nccl_engine.h.
class CollectiveEngine {
 public:
  virtual ~CollectiveEngine() = default;

  // Returns the name by which users choose it: "ring".
  virtual const char* name() const = 0;

  // Makes a call, and blocks until it is complete for this rank, its deadline passes, or the group
  // fails. The error names the rank that was waited for. After an error the contents of the output
  // are undefined, and the caller fails the group.
  virtual absl::Status run(const CollectiveCall& call) = 0;

  // Returns memory that all_reduce works on without copies, if the engine has such memory;
  // otherwise an undefined tensor of bytes. Freed with the last reference to the tensor.
  // Thread-safe.
  virtual at::Tensor allocate(int64_t bytes) {
    (void)bytes;
    return {};
  }
};

}  // namespace trireme::internal
