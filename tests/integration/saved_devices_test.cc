// Saves of variables that sessions have placed on accelerators, together with those of parameter
// servers.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "trireme/ps/saves_fixture.h"
#include "trireme/testing/accelerator/stand_in_fixture.h"

namespace trireme::internal {
namespace {

class SavedDevicesTest : public testing::TestWithParam<bool> {
 protected:
  static void SetUpTestSuite() { register_stand_in_accelerator(); }

  TemporaryFolder folder_;
  TestCheckpoints checkpoints_{folder_.path()};
};
INSTANTIATE_TEST_SUITE_P(Modes, SavedDevicesTest, testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Stream" : "Copy"; });

TEST_P(SavedDevicesTest, HaveTheContentsAtTheCut) {
  TestServers servers(1);
  const auto& host = servers.context(0).variables;
  const auto weight =
      value_or_throw(host->create("default", "weight", at::full({700, 500}, 0.5f), gpu(1)));
  const auto counts = value_or_throw(host->create("default", "counts", at::full({}, 2.0f), gpu(0)));
  TrainedVariables trained(
      servers, 1, {{"bias", {7}, "adam"}, {"weight", {700, 500}, "adam"}, {"counts", {}, ""}});
  trained.train(3);
  const auto expected = trained.pull();
  const auto save = value_or_throw(checkpoints_.begin(trained, 1, GetParam()));
  trained.train(5, 7);
  {
    // As an operator of a session would.
    WriterLock lock(weight->mutex);
    weight->before_change();
    weight->tensor.fill_(9);
  }
  const auto reader = checkpoints_.commit(*save, 1);
  throw_if_error(reader->verify());
  const auto state = state_of(*reader);
  EXPECT_TRUE(state.at("bias").equal(expected[0]));
  EXPECT_TRUE(state.at("weight").equal(expected[1]));
  EXPECT_TRUE(state.at("counts").equal(expected[2]));
  EXPECT_EQ(state.at("weight step").item<double>(), 3);
  EXPECT_GE(save->stats().extra_bytes, weight->tensor.nbytes());

  throw_if_error(ps_load(trained.client(), reader->path(), reader->manifest(),
                         loads_of(trained, reader->manifest()), {}));
  const auto loaded = trained.pull();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(loaded[i].equal(expected[i])) << i;
  EXPECT_EQ(weight->tensor.device(), gpu(1));
  EXPECT_EQ(counts->tensor.device(), gpu(0));
}

}  // namespace
}  // namespace trireme::internal
