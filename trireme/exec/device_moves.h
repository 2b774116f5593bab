#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::internal {

// The moves of one run between accelerators. A move is queued on streams of its own, so that
// neither device waits for it before something uses the moved value. Several threads may move and
// use different values.
class DeviceMoves {
 public:
  // `values` is the number of values of the run.
  explicit DeviceMoves(size_t values) : arrivals_(values) {}

  // Calls `copy`, which must return a copy of `tensor` on `to`, another accelerator than its own,
  // and notes when it arrives. `value` is the number of the copy.
  at::Tensor move(uint32_t value, const at::Tensor& tensor, c10::Device to,
                  const std::function<at::Tensor()>& copy);

  // Lets work that is queued on the current stream of the value's device from now on wait until the
  // value has arrived. Returns at once; does nothing for a value that was not moved.
  void await(uint32_t value, const at::Tensor& moved);

 private:
  std::vector<std::unique_ptr<c10::Event>> arrivals_;  // by value; null if it was not moved
};

}  // namespace trireme::internal
