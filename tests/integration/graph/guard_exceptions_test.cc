// Arguments that guards accept: pooling without examples, and contents of devices that are trusted.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "trireme/base/status.h"
#include "trireme/exec/replay.h"
#include "trireme/function/function.h"
#include "trireme/graph/trusted_contents.h"

namespace trireme::internal {
namespace {

using at::Tensor;
using testing::HasSubstr;
using Tensors = std::vector<Tensor>;
using Body = std::function<Tensor(const Tensors&)>;

std::shared_ptr<const Plan> captured_plan(const Body& body, const Tensors& inputs) {
  return Access<Graph>::plan(function("guarded", body, {.check_capture = false}).graph(inputs));
}

// A replica may get a part of a batch without examples, which eager code accepts.
TEST(GuardExceptions, PoolingMayHaveNoExamples) {
  const torch::NoGradGuard no_gradients;
  const auto longs = [](at::IntArrayRef sizes) { return torch::zeros(sizes, torch::kLong); };
  const auto maximum = [](const Tensors& t) {
    return at::max_pool2d_with_indices_backward(t[0], t[1], {2, 2}, {2, 2}, {0, 0}, {1, 1}, false,
                                                t[2]);
  };
  const auto maximum_3d = [](const Tensors& t) {
    return at::max_pool3d_with_indices_backward(t[0], t[1], {2, 2, 2}, {2, 2, 2}, {0, 0, 0},
                                                {1, 1, 1}, false, t[2]);
  };
  const auto mean = [](const Tensors& t) {
    return at::avg_pool2d_backward(t[0], t[1], {2, 2}, {2, 2}, {0, 0}, false, true, std::nullopt);
  };
  const Tensor small = torch::rand({2, 3, 4, 4}), large = torch::rand({2, 3, 8, 8});
  const Tensor small_3d = torch::rand({2, 3, 2, 2, 2}), large_3d = torch::rand({2, 3, 4, 4, 4});
  const std::vector<std::pair<Body, Tensors>> cases = {
      {maximum, {small, large, longs({2, 3, 4, 4})}},
      {maximum_3d, {small_3d, large_3d, longs({2, 3, 2, 2, 2})}},
      {[](const Tensors& t) { return at::adaptive_max_pool2d_backward(t[0], t[1], t[2]); },
       {small, large, longs({2, 3, 4, 4})}},
      {[](const Tensors& t) { return at::adaptive_max_pool3d_backward(t[0], t[1], t[2]); },
       {small_3d, large_3d, longs({2, 3, 2, 2, 2})}},
      {mean, {small, large}},
      {[](const Tensors& t) { return at::_adaptive_avg_pool2d_backward(t[0], t[1]); },
       {small, large}},
      {[](const Tensors& t) { return at::_adaptive_avg_pool3d_backward(t[0], t[1]); },
       {small_3d, large_3d}},
      {[](const Tensors& t) {
         return at::reflection_pad2d_backward(t[0], t[1], {2, 2, 2, 2});
       },
       {large, small}},
      {[](const Tensors& t) {
         return at::replication_pad2d_backward(t[0], t[1], {2, 2, 2, 2});
       },
       {large, small}},
      {[](const Tensors& t) {
         return at::reflection_pad1d_backward(t[0], t[1], {1, 1});
       },
       {torch::rand({2, 3, 6}), torch::rand({2, 3, 4})}},
      {[](const Tensors& t) {
         return at::replication_pad1d_backward(t[0], t[1], {1, 1});
       },
       {torch::rand({2, 3, 6}), torch::rand({2, 3, 4})}},
      {[](const Tensors& t) {
         return at::reflection_pad3d_backward(t[0], t[1], {1, 1, 1, 1, 1, 1});
       },
       {large_3d, small_3d}},
      {[](const Tensors& t) {
         return at::replication_pad3d_backward(t[0], t[1], {1, 1, 1, 1, 1, 1});
       },
       {large_3d, small_3d}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [body, good] = cases[i];
    const auto plan = captured_plan(body, good);
    Tensors inputs;
    for (const Tensor& tensor : good) inputs.push_back(tensor.narrow(0, 0, 0));
    const Tensors results = value_or_throw(replay(*plan, inputs, {}, {}));
    EXPECT_EQ(results[0].sizes(), body(inputs).sizes()) << "case " << i;
    for (Tensor& tensor : inputs) tensor = tensor.narrow(1, 0, 0);
    EXPECT_THAT(describe(replay(*plan, inputs, {}, {}).status()), HasSubstr("must not be empty"))
        << "case " << i;
  }
}

// To read contents on the CPU costs no wait for a device.
TEST(GuardExceptions, ContentsOnTheCpuAreCheckedInTrustedGraphsToo) {
  constexpr int64_t kFarRow = int64_t{1} << 40;
  const torch::NoGradGuard no_gradients;
  const auto rows = [](int64_t last) { return torch::tensor({int64_t{0}, last}); };
  const auto body = [](const Tensors& t) {
    return at::embedding_dense_backward(t[0], t[1], 4, -1, false);
  };
  const Tensor gradient = torch::rand({2, 3});
  const auto plan = captured_plan(body, {gradient, rows(3)});
  const ReplayOptions trusted{.trusted = true};
  EXPECT_TRUE(replay(*plan, {gradient, rows(3)}, {}, {}, trusted).ok());
  EXPECT_THAT(describe(replay(*plan, {gradient, rows(kFarRow)}, {}, {}, trusted).status()),
              HasSubstr("'indices' holds"));
}

TEST(GuardExceptions, OnlyContentsOfDevicesAreTrustedAndOnlyInAScope) {
  const Tensor on_device = torch::empty({2}, torch::kMeta), here = torch::ones({2});
  EXPECT_FALSE(has_trusted_contents(on_device));
  {
    const TrustDeviceContents trust(true);
    EXPECT_TRUE(has_trusted_contents(on_device));
    EXPECT_FALSE(has_trusted_contents(here));
    const TrustDeviceContents distrust(false);
    EXPECT_FALSE(has_trusted_contents(on_device));
  }
  EXPECT_FALSE(has_trusted_contents(on_device));
}

}  // namespace
}  // namespace trireme::internal
