// Models whose replicas run on logical CPUs of this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "trireme/model/backup_and_restore.h"
#include "trireme/model/model.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/mirrored_training.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using testing::HasSubstr;
using torch::Tensor;

class MirroredModelTest : public testing::TestWithParam<int> {
 protected:
  Strategy mirrored() const {
    return MirroredStrategy({.devices = device_names("cpu", GetParam())});
  }
  Strategy central() const {
    return CentralStorageStrategy({.compute_devices = device_names("cpu", GetParam())});
  }
};

INSTANTIATE_TEST_SUITE_P(Replicas, MirroredModelTest, testing::Values(1, 2, 3));

TEST_P(MirroredModelTest, TrainsAConvNetToTheWeightsOfOneProcess) {
  EXPECT_LE(distance_from_one_process<ConvNet>(mirrored()), 1e-9);
  EXPECT_LE(distance_from_one_process<ConvNet>(central()), 1e-9);
}

TEST_P(MirroredModelTest, TrainsATransformerLayerToTheWeightsOfOneProcess) {
  EXPECT_LE(distance_from_one_process<TransformerNet>(mirrored()), 1e-9);
  EXPECT_LE(distance_from_one_process<TransformerNet>(central()), 1e-9);
}

// Rounding differs with the order in which gradients are added up. The bias of the attention's keys
// has a gradient of zero, of which rounding alone is left, and Adam divides it by its own size.
TEST_P(MirroredModelTest, StaysCloseInFloat32) {
  const double conv = distance_from_one_process<ConvNet>(mirrored(), torch::kFloat);
  const double transformer = distance_from_one_process<TransformerNet>(mirrored(), torch::kFloat);
  std::cout << GetParam() << " replicas, float32: conv net " << conv << ", transformer "
            << transformer << "\n";
  EXPECT_LE(conv, 1e-4);
  EXPECT_LE(transformer, 5e-2);
}

// The last batch has fewer examples than there are replicas.
TEST(MirroredModel, ReplicasMayGetNoExamples) {
  const Tensor x = torch::randn({13, 4}, torch::kDouble), y = torch::randn({13, 2}, torch::kDouble);
  const auto train = [&](const Strategy& strategy) {
    torch::manual_seed(3);
    nn::Linear net(4, 2);
    net->to(torch::kDouble);
    Model model(net, strategy);
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
    model.fit(x, y, {.batch_size = 6, .epochs = 3, .shuffle = false, .verbose = Verbose::kSilent});
    return net->weight.detach().clone();
  };
  const Tensor trained = train(MirroredStrategy({.devices = device_names("cpu", 3)}));
  EXPECT_LE(relative_distance(trained, train(Strategy())), 1e-12);
}

// The parts of the batches have 2 and 1 examples, and 1 and none.
TEST(MirroredModel, FiguresOfAnOwnStepCountByTheirExamples) {
  const Tensor x = torch::arange(4, torch::kDouble).reshape({4, 1});
  Model model(nn::Linear(1, 1), MirroredStrategy({.devices = device_names("cpu", 2)}));
  model.compile({.train_step = [](const std::vector<Tensor>& batch) {
    return std::map<std::string, Tensor>{{"mean", batch[0].mean()}};
  }});
  const History history = model.fit(
      x, x, {.batch_size = 3, .epochs = 1, .shuffle = false, .verbose = Verbose::kSilent});
  EXPECT_EQ(history["mean"].back(), 2);  // the mean of 1 and 3
}

TEST(MirroredModel, ADatasetHasGlobalBatches) {
  const Tensor x = torch::randn({40, 4}, torch::kDouble), y = torch::randn({40, 2}, torch::kDouble);
  const auto train = [&](const Strategy& strategy) {
    torch::manual_seed(3);
    nn::Linear net(4, 2);
    net->to(torch::kDouble);
    Model model(net, strategy);
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
    int64_t steps = 0;
    model.fit(Dataset::from_tensors({x, y}).batch(8),
              {.epochs = 2,
               .callbacks = {on_epoch_end([&](Fit& fit, const Logs&) { steps = fit.step(); })},
               .verbose = Verbose::kSilent});
    EXPECT_EQ(steps, 10);
    return net->weight.detach().clone();
  };
  const Tensor trained = train(MirroredStrategy({.devices = device_names("cpu", 2)}));
  EXPECT_LE(relative_distance(trained, train(Strategy())), 1e-12);
}

// A fit that is interrupted continues where it was, to the weights of an undisturbed one.
TEST(MirroredModel, BackupAndRestoreContinues) {
  const Tensor x = torch::randn({40, 4}), y = torch::randn({40, 2});
  const auto train = [&](const std::string& folder, int stop_after) {
    torch::manual_seed(3);
    nn::Linear net(4, 2);
    Model model(net, MirroredStrategy({.devices = device_names("cpu", 2)}));
    model.compile({.optimizer = Adam({.lr = 0.1}), .loss = nn::MSELoss()});
    model.fit(x, y,
              {.batch_size = 8,
               .epochs = 4,
               .callbacks = {BackupAndRestore(folder), on_epoch_end([&](Fit& fit, const Logs&) {
                               if (fit.epoch() == stop_after)
                                 throw std::runtime_error("interrupted");
                             })},
               .verbose = Verbose::kSilent});
    return net->weight.detach().clone();
  };
  const TemporaryFolder undisturbed, interrupted;
  const Tensor expected = train(undisturbed.path(), /*stop_after=*/-1);
  EXPECT_THROW(train(interrupted.path(), /*stop_after=*/1), std::runtime_error);
  EXPECT_TRUE(torch::equal(train(interrupted.path(), /*stop_after=*/-1), expected));
}

}  // namespace
}  // namespace trireme
