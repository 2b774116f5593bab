#include <torch/torch.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "trireme/testing/accelerator/device_memory.h"
#include "trireme/testing/accelerator/device_stream.h"
#include "trireme/testing/accelerator/stand_in_fixture.h"
#include "trireme/testing/libtorch_error.h"

namespace trireme {
namespace {

using torch::Tensor;

// Has the tests run their death tests in new processes, in which streams have threads.
class StandInProtection : public StandInAccelerator {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

const ::testing::KilledBySignal kFault(SIGSEGV);

float read_on_host(const Tensor& tensor) {
  return *static_cast<const volatile float*>(tensor.data_ptr());
}

TEST_F(StandInProtection, FaultsIfTheHostTouchesMemoryOfADevice) {
  const Tensor tensor = torch::ones({4}, gpu(0));
  EXPECT_EXIT(read_on_host(tensor), kFault, "");
  EXPECT_EXIT(*static_cast<volatile float*>(tensor.data_ptr()) = 1, kFault, "");
  EXPECT_TRUE(tensor.cpu().equal(torch::ones({4})));
}

TEST_F(StandInProtection, FaultsIfTheHostTouchesMemoryOfARunningKernel) {
  if (!internal::protected_by_keys()) GTEST_SKIP() << "the processor has no protection keys";
  EXPECT_EXIT(
      {
        set_stand_in_kernel_delay(std::chrono::seconds(20));
        const Tensor tensor = torch::ones({4}, gpu(0));
        read_on_host(tensor);
      },
      kFault, "");
}

TEST_F(StandInProtection, FaultsIfAKernelTouchesMemoryOfAnotherDevice) {
  if (!internal::protected_by_keys()) GTEST_SKIP() << "the processor has no protection keys";
  EXPECT_EXIT(
      {
        const Tensor tensor = torch::ones({4}, gpu(1));
        internal::current_stream(0).enqueue([&] { read_on_host(tensor); }, {});
        internal::synchronize_device(0);
      },
      kFault, "");
}

TEST_F(StandInProtection, RejectsOperatorsOnTensorsOfSeveralDevices) {
  const Tensor images = torch::ones({1, 1, 4, 4}, gpu(0));
  const Tensor weight = torch::ones({1, 1, 2, 2});
  const std::string expected = ", but others are on gpu:0; copy it there first";
  EXPECT_EQ(libtorch_error([&] { torch::conv2d(images, weight.to(gpu(1))); }),
            "aten::convolution: an argument is on gpu:1" + expected);
  EXPECT_EQ(libtorch_error([&] { torch::conv2d(images, weight); }),
            "aten::convolution: an argument is on cpu" + expected);
  EXPECT_NE(libtorch_error([&] { images.add(images.to(gpu(1))); }), "no error");
  EXPECT_EQ(libtorch_error([&] { torch::ones({1}, gpu(2)); }),
            "gpu:2 does not exist; there are 2 devices");
}

TEST_F(StandInProtection, CountsTheMemoryOfEachDevice) {
  const StandInCounters before = stand_in_counters(0);
  const int64_t other = stand_in_counters(1).bytes;
  {
    const Tensor tensor = torch::empty({1 << 20}, gpu(0));
    EXPECT_EQ(stand_in_counters(0).bytes - before.bytes, 4 << 20);
    EXPECT_EQ(stand_in_counters(1).bytes, other);
  }
  internal::synchronize_device(0);
  EXPECT_EQ(stand_in_counters(0).bytes, before.bytes);
  EXPECT_GE(stand_in_counters(0).peak_bytes, before.bytes + (4 << 20));
}

// These register the accelerator in processes of their own.
TEST(StandInWithoutKeys, GuardsPagesWithoutProtectionKeys) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const StandInOptions without_keys = {.devices = 3, .protection_keys = false};
  EXPECT_EXIT(
      {
        register_stand_in_accelerator(without_keys);
        const Tensor sum = torch::ones({4}, gpu(2)) + torch::ones({4}, gpu(1)).to(gpu(2));
        std::exit(sum.sum().item<float>() == 8 && !internal::protected_by_keys() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        register_stand_in_accelerator(without_keys);
        const Tensor tensor = torch::ones({4}, gpu(2));
        internal::synchronize_device(2);
        read_on_host(tensor);
      },
      kFault, "");
}

}  // namespace
}  // namespace trireme
