#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trireme/graph/plan.h"

namespace trireme::internal {

// The moves of one run between accelerators. A move is queued on streams of its own, so that
// neither device waits for it before something uses the moved value. If this step or another one
// may write to the memory that is moved, its device waits for the move at once. Several threads may
// move and use different values.
class DeviceMoves {
 public:
  explicit DeviceMoves(const Plan& plan);

  // Calls `copy`, which must return a copy of `tensor`, the value `from`, on `device`, another
  // accelerator than its own, and notes when it arrives. `to` is the number of the copy.
  void move(uint32_t from, uint32_t to, const at::Tensor& tensor, c10::Device device,
            const std::function<at::Tensor()>& copy);

  // Lets work that is queued on the current stream of the value's device from now on wait until the
  // value has arrived. Returns at once; does nothing for a value that was not moved.
  void await(uint32_t value, const at::Tensor& moved);

 private:
  const std::vector<uint32_t>& storages_;              // of the plan
  std::vector<bool> changes_;                          // by storage; true if it may be written
  std::vector<std::unique_ptr<c10::Event>> arrivals_;  // by value; null if it was not moved
};

}  // namespace trireme::internal
