#include "trireme/placement/accelerator_info.h"

#include <gtest/gtest.h>

namespace trireme::internal {
namespace {

TEST(AcceleratorInfo, IsDescribedInOneLine) {
  AcceleratorInfo accelerator{.index = 2,
                              .name = "NVIDIA H100 80GB HBM3",
                              .compute_major = 9,
                              .compute_minor = 0,
                              .total_memory = uint64_t{80} << 30,
                              .free_memory = (uint64_t{79} << 30) + (uint64_t{1} << 29)};
  EXPECT_EQ(describe(accelerator),
            "gpu:2 is a NVIDIA H100 80GB HBM3, compute capability 9.0, 79.5 of 80.0 GiB free");
  accelerator.peers = {0, 1};
  EXPECT_TRUE(describe(accelerator).ends_with(" free, reads the memory of gpu:0, gpu:1"))
      << describe(accelerator);
}

}  // namespace
}  // namespace trireme::internal
