// Models whose replicas run on the stand-in accelerator.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/model/model.h"
#include "trireme/testing/accelerator/stand_in_fixture.h"
#include "trireme/testing/mirrored_training.h"

namespace trireme {
namespace {

class AcceleratedModelTest : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { register_stand_in_accelerator({.devices = 3}); }
  Strategy mirrored() const {
    return MirroredStrategy({.devices = device_names("gpu", GetParam())});
  }
  Strategy central() const {
    return CentralStorageStrategy({.compute_devices = device_names("gpu", GetParam())});
  }
};

INSTANTIATE_TEST_SUITE_P(Replicas, AcceleratedModelTest, testing::Values(1, 2, 3));

TEST_P(AcceleratedModelTest, MirroredTrainsAConvNetToTheWeightsOfOneProcess) {
  EXPECT_LE(distance_from_one_process<ConvNet>(mirrored()), 1e-9);
}

TEST_P(AcceleratedModelTest, MirroredTrainsATransformerLayerToTheWeightsOfOneProcess) {
  EXPECT_LE(distance_from_one_process<TransformerNet>(mirrored()), 1e-9);
}

TEST_P(AcceleratedModelTest, CentralStorageTrainsAConvNetToTheWeightsOfOneProcess) {
  EXPECT_LE(distance_from_one_process<ConvNet>(central()), 1e-9);
}

TEST_P(AcceleratedModelTest, CentralStorageTrainsATransformerLayerToTheWeightsOfOneProcess) {
  EXPECT_LE(distance_from_one_process<TransformerNet>(central()), 1e-9);
}

}  // namespace
}  // namespace trireme
