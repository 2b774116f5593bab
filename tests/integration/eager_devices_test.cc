// Device scopes on a machine with accelerators: outside of functions, and in closures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "trireme/capture/device_scope.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/server/in_process_cluster.h"
#include "trireme/testing/accelerator/stand_in_fixture.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using torch::Tensor;

std::string log_of(const std::function<void()>& work) {
  testing::internal::CaptureStderr();
  work();
  return testing::internal::GetCapturedStderr();
}

class EagerDevicesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { register_stand_in_accelerator({.devices = 3}); }
};

TEST_F(EagerDevicesTest, AnOptimizerChangesVariablesWhereTheyAre) {
  const Variable w("w", torch::ones({3}));
  const Sgd optimizer({w}, {.lr = 0.5});
  {
    const DeviceScope on("/gpu:0");
    optimizer.minimize((w.read() * 2).sum());
    optimizer.apply_gradients({torch::full({3}, 4.0f).to(gpu(0))});
  }
  EXPECT_TRUE(w.read().is_cpu());
  EXPECT_TRUE(w.read().equal(torch::full({3}, 1 - 0.5f * 2 - 0.5f * 4))) << w.read();
}

TEST_F(EagerDevicesTest, VariablesOfOneDeviceAreMultipliedOnAnother) {
  std::optional<Variable> a, b;
  {
    const DeviceScope on("CPU:0");
    a.emplace("a", torch::tensor({{1., 2., 3.}, {4., 5., 6.}}));
    b.emplace("b", torch::tensor({{1., 2., 3.}}));
  }
  EXPECT_EQ(a->device(), "/cpu:0");
  const Tensor expected = torch::tensor({{1., 4., 9.}, {4., 10., 18.}});
  Tensor k;
  EXPECT_THAT(log_of([&] {
                const DeviceScope on("GPU:0");
                k = *a * *b;
                EXPECT_EQ(k.device(), gpu(0));
                std::ostringstream printed;
                printed << k;
                EXPECT_THAT(printed.str(), HasSubstr("4  10  18"));
                const DeviceScope inner("/gpu:1");
                EXPECT_EQ((a->read() - *b).device(), gpu(1));
              }),
              IsEmpty());
  EXPECT_TRUE(k.cpu().equal(expected)) << k;
  EXPECT_TRUE(a->read().is_cpu());
}

TEST_F(EagerDevicesTest, GradientsFlowThroughWhatAScopeHasMoved) {
  const Variable v("v", torch::full({2}, 3.0));
  EXPECT_THAT(log_of([&] {
                const DeviceScope on("/gpu:1");
                const Tensor loss = (v * v + 2 * v).sum();
                EXPECT_EQ(loss.device(), gpu(1));
                loss.backward();
                v.assign_sub(v.read().detach());
                v.assign_add(v + 5);
              }),
              IsEmpty());
  EXPECT_TRUE(v.read().grad().equal(torch::full({2}, 8.0)));
  EXPECT_TRUE(v.read().equal(torch::full({2}, 5.0)));
}

TEST_F(EagerDevicesTest, AnOperatorOnOtherTensorsIsToldOnce) {
  const Tensor x = torch::ones({2});
  const DeviceScope on("/gpu:2");
  EXPECT_THAT(log_of([&] { EXPECT_TRUE((x * 2).is_cpu()); }),
              HasSubstr("operator 'aten::mul.Scalar' in the scope of device '/gpu:2' ran on cpu, "
                        "where its tensors are: outside of a captured function a scope moves what "
                        "tr::Variable::read() returns, and no other tensor. Move it with to(), or "
                        "put the operator into a function"));
  EXPECT_THAT(log_of([&] { x + 1; }), IsEmpty());
}

TEST_F(EagerDevicesTest, AFunctionRunsOnTheDeviceThatItsScopeNames) {
  const auto f = function("f", [](const Tensor& x) {
    const DeviceScope on("GPU:1");
    return x * 2;
  });
  const Tensor x = torch::ones({2});
  EXPECT_THAT(f.graph(x).explain(), HasSubstr("on /gpu:1: '/gpu:1'"));
  const int64_t before = stand_in_counters(1).kernels;
  EXPECT_TRUE(f(x).is_cpu());
  EXPECT_GT(stand_in_counters(1).kernels, before);
}

TEST_F(EagerDevicesTest, AClosureRunsOnTheDevicesOfItsWorker) {
  InProcessCluster cluster({.workers = 1, .ps = 1, .devices = DeviceList{.cpus = 1, .gpus = 2}});
  const ParameterServerStrategy strategy(cluster.resolver());
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
  ClusterCoordinator coordinator(strategy);
  const auto scope = strategy.scope();
  const Variable v("v", torch::full({3}, 2.0));
  const auto kernels_of = [&](const char* device) {
    const auto f = function("f", [&, device](const Tensor& x) {
      const DeviceScope on(device);
      return x * v.read();
    });
    const int64_t before[] = {stand_in_counters(0).kernels, stand_in_counters(1).kernels};
    EXPECT_EQ(coordinator.fetch(coordinator.schedule(f, torch::ones({3}))).sum().item<float>(), 6);
    return std::pair(stand_in_counters(0).kernels - before[0],
                     stand_in_counters(1).kernels - before[1]);
  };
  EXPECT_EQ(kernels_of("/cpu:0"), std::make_pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(kernels_of("/gpu:1").first, 0);
  EXPECT_GT(kernels_of("/gpu:1").second, 0);
  EXPECT_GT(kernels_of("/gpu:0").first, 0);
}

// A local call of a function with variables on parameter servers computes in the program.
TEST_F(EagerDevicesTest, ALocalCallWithVariablesOnServersUsesTheDevicesOfTheProgram) {
  InProcessCluster cluster({.workers = 1, .ps = 1});
  const ParameterServerStrategy strategy(cluster.resolver());
  const auto scope = strategy.scope();
  const Variable v("v", torch::full({3}, 2.0));
  const auto f = function("f", [&](const Tensor& x) {
    const DeviceScope on("/gpu:1");
    return x * v.read();
  });
  const int64_t before = stand_in_counters(1).kernels;
  EXPECT_EQ(f(torch::ones({3})).sum().item<float>(), 6);
  EXPECT_GT(stand_in_counters(1).kernels, before);
}

}  // namespace
}  // namespace trireme
