#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "trireme/base/clock.h"
#include "trireme/testing/accelerator/device_stream.h"
#include "trireme/testing/accelerator/stand_in.h"

namespace trireme {

// Registers the stand-in accelerator with two devices. When a test ends, the devices are idle and
// have no delay.
class StandInAccelerator : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { register_stand_in_accelerator(); }
  void TearDown() override {
    set_stand_in_kernel_delay({});
    for (int device : {0, 1}) internal::synchronize_device(device);
  }
};

inline c10::Device gpu(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

// Returns how often the host waited for any device while `work` ran.
inline int64_t synchronizations_of(const std::function<void()>& work) {
  const auto count = [] {
    return stand_in_counters(0).host_synchronizations + stand_in_counters(1).host_synchronizations;
  };
  const int64_t before = count();
  work();
  return count() - before;
}

// Returns the milliseconds that `work` takes.
inline double milliseconds_of(const std::function<void()>& work) {
  const Time began = Clock::real().now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::real().now() - began).count();
}

// Returns the shortest of three measurements, which other processes have disturbed least.
inline double shortest(const std::function<double()>& measure) {
  return std::min({measure(), measure(), measure()});
}

// Returns the largest difference of two tensors on any devices.
inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  EXPECT_EQ(a.scalar_type(), b.scalar_type());
  const at::Tensor difference = a.cpu().to(at::kDouble) - b.cpu().to(at::kDouble);
  return difference.numel() == 0 ? 0 : difference.abs().max().item<double>();
}

}  // namespace trireme
