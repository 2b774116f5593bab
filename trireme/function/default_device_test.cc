// With the stand-in accelerator, all functions of this binary compute on it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/function/device_plan.h"
#include "trireme/function/function.h"
#include "trireme/placement/local_devices.h"

namespace trireme::internal {
namespace {

class ComputeOnAccelerator : public testing::Environment {
 public:
  void SetUp() override { set_default_device(hardware_of(DeviceType::kGpu, 0)); }
};

const auto* const compute_on_accelerator =
    testing::AddGlobalTestEnvironment(new ComputeOnAccelerator);

TEST(DefaultDevice, ResultsAreWhereTheProgramExpectsThem) {
  EXPECT_EQ(default_device().is_cpu(), accelerator_count() == 0);
  const auto twice =
      function("twice", [](const at::Tensor& x) { return x * 2 + torch::ones({3}); });
  const at::Tensor result = twice(torch::full({3}, 4.f));
  EXPECT_TRUE(result.is_cpu());
  EXPECT_TRUE(torch::equal(result, torch::full({3}, 9.f)));
}

}  // namespace
}  // namespace trireme::internal
