// Device scopes in closures: a device of the worker is used, and a task is an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "trireme/capture/device_scope.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using torch::Tensor;

class ClosureScopesTest : public testing::Test {
 protected:
  // Returns a function that multiplies in the scope of a device.
  auto scaled_on(const std::string& device) {
    return function("scale", [this, device](const Tensor& x) {
      const DeviceScope on(device);
      return x * scale_.read();
    });
  }
  // Returns what workers and the program log while one closure runs.
  std::string log_of(const Function<Tensor(const Tensor&)>& f) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(coordinator_.fetch(coordinator_.schedule(f, torch::ones({3}))).sum().item<float>(),
              6);
    return testing::internal::GetCapturedStderr();
  }

  InProcessTestCluster cluster_{{.workers = 1, .ps = 1}, DeviceList{.cpus = 1, .gpus = 2}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec()), {.replicas = 1}};
  ClusterCoordinator coordinator_{strategy_};
  ParameterServers::Scope scope_ = strategy_.scope();
  Variable scale_{"scale", torch::full({3}, 2.0)};
};

TEST_F(ClosureScopesTest, ATaskIsAnErrorWhenTheFunctionIsScheduled) {
  for (const std::string device : {"/job:worker/task:1", "/job:ps", "/job:ps/task:0/cpu:0",
                                   "/task:0", "/job:worker/task:9/gpu:0"}) {
    const Error error =
        error_of([&] { coordinator_.schedule(scaled_on(device), torch::ones({3})); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << device;
    EXPECT_EQ(std::string(error.what()),
              "function 'scale': operator 'aten::mul.Tensor' (node 0) is in the scope of device '" +
                  device +
                  "', but the worker that takes a closure runs all of it. Name a device of that "
                  "worker without a task ('/gpu:1'), leave the scope out, or run the function with "
                  "tr::Session");
  }
  EXPECT_TRUE(coordinator_.done());
  EXPECT_THAT(log_of(scaled_on("/job:worker")), Not(HasSubstr("device")));
}

TEST_F(ClosureScopesTest, AScopeAroundScheduleHoldsForTheFunction) {
  const auto f = function("scale", [this](const Tensor& x) { return x * scale_.read(); });
  EXPECT_THAT(log_of(f), Not(HasSubstr("device")));
  {
    const DeviceScope on("/job:worker/task:1");
    EXPECT_THAT(error_text([&] { coordinator_.schedule(f, torch::ones({3})); }),
                HasSubstr("is in the scope of device '/job:worker/task:1'"));
  }
  const DeviceScope on("/gpu:7");
  EXPECT_THAT(log_of(f),
              HasSubstr("of a client program: device '/gpu:7', named by scope '/gpu:7'"));
}

TEST_F(ClosureScopesTest, ADeviceThatTheWorkerHasIsUsedAndAnotherOneIsReplacedWithOneWarning) {
  EXPECT_THAT(log_of(scaled_on("/gpu:1")), Not(HasSubstr("device")));
  EXPECT_THAT(log_of(scaled_on("/cpu:0")), Not(HasSubstr("device")));
  EXPECT_THAT(log_of(scaled_on("/gpu:5")),
              HasSubstr("function 'scale' of a client program: device '/gpu:5', named by scope "
                        "'/gpu:5', does not exist; using '/gpu:0' (/job:worker/task:0 has "
                        "cpu:0,gpu:0,gpu:1)"));
  const auto other = function("other", [&](const Tensor& x) {
    const DeviceScope on("/gpu:5");
    return scale_.read() * x;
  });
  EXPECT_THAT(log_of(other), Not(HasSubstr("device")));
}

TEST_F(ClosureScopesTest, AColocationWithAVariableOnTheServersIsAnError) {
  const auto f = function("scale", [&](const Tensor& x) {
    const ColocationScope with(scale_.read());
    return x * 2;
  });
  EXPECT_THAT(error_text([&] { coordinator_.schedule(f, torch::ones({3})); }),
              AllOf(HasSubstr("operator 'aten::mul.Scalar'"),
                    HasSubstr("is in the scope of a colocation with variable 'scale', which is on "
                              "the parameter servers")));
}

TEST_F(ClosureScopesTest, AWorkerHasAReplicaForEachOfItsGpus) {
  const ParameterServerStrategy strategy{Cluster(cluster_.spec())};
  ClusterCoordinator coordinator(strategy);
  const auto ids = function("ids", [&](Iterator& numbers) {
    return strategy.reduce(
        ReduceOp::kSum,
        strategy.run([](Iterator& mine) { return mine.next() + 100 * replica_id(); }, numbers));
  });
  int replicas = 0;
  const auto data = coordinator.create_per_worker_dataset([&](const InputContext& context) {
    replicas = context.num_replicas_in_sync;
    return Dataset::range(1, 3);
  });
  EXPECT_EQ(coordinator.fetch(coordinator.schedule(ids, data.iterator())).item<int64_t>(), 103);
  EXPECT_EQ(replicas, 2);
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
}

}  // namespace
}  // namespace trireme
