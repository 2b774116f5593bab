// Tasks compute on accelerators: values move between the devices of one task and of several tasks,
// variables live on their device, and the results are those of the CPU. The accelerator is the
// stand-in, on which an operator that reads another device's memory is a fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <optional>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/capture/device_scope.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/module.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/variable_store.h"
#include "trireme/runtime/session.h"
#include "trireme/testing/accelerator/stand_in_fixture.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using torch::Tensor;

const TaskId kMaster = {"worker", 0};

// Returns the number of kernels that each device has run during `work`.
std::vector<int64_t> kernels_of(const std::function<void()>& work) {
  std::vector<int64_t> counts;
  for (int i : {0, 1}) counts.push_back(stand_in_counters(i).kernels);
  work();
  for (int i : {0, 1}) {
    internal::synchronize_device(i);
    counts[i] = stand_in_counters(i).kernels - counts[i];
  }
  return counts;
}

using SessionDevicesTest = StandInAccelerator;

TEST_F(SessionDevicesTest, MoveValuesBetweenDevicesOfOneTask) {
  InProcessTestCluster cluster({.workers = 1, .ps = 0});
  Session session(cluster.target(kMaster));
  const auto f = function("f", [](const Tensor& x) {
    Tensor a, b, c;
    {
      DeviceScope on("/gpu:0");
      a = x * 2;
    }
    {
      DeviceScope on("/gpu:1");
      b = a.exp().t() + torch::arange(2, at::kDouble);
    }
    {
      DeviceScope on("/cpu:0");
      c = (b + a.t()).sin();
      a.add_(c.t());  // runs where `a` is
    }
    DeviceScope on("/gpu:1");
    b.select(0, 0).mul_(3);
    return std::make_pair(a + b.t(), a.select(0, 1));
  });
  const Tensor x = torch::linspace(-1, 1, 6, at::kDouble).reshape({2, 3});
  const auto on_cpu = f(x.clone());
  std::pair<Tensor, Tensor> got;
  const std::vector<int64_t> kernels = kernels_of([&] { got = session.run(f, x); });
  EXPECT_TRUE(torch::equal(got.first, on_cpu.first)) << got.first << on_cpu.first;
  EXPECT_TRUE(torch::equal(got.second, on_cpu.second));
  EXPECT_GE(kernels[0], 2);
  EXPECT_GE(kernels[1], 4);
  const std::string text = session.graph(f, x).explain();
  EXPECT_THAT(text, HasSubstr("/job:worker/task:0/gpu:1"));
  EXPECT_THAT(text, HasSubstr("/job:worker/task:0/cpu:0"));
}

TEST_F(SessionDevicesTest, MoveValuesBetweenTasks) {
  InProcessTestCluster cluster({.workers = 2, .ps = 1});
  Session session(cluster.target(kMaster));
  const auto f = function("f", [](const Tensor& x) {
    Tensor a, b, c;
    {
      DeviceScope on("/job:worker/task:0/gpu:1");
      a = x.cos();
    }
    {
      DeviceScope on("/job:worker/task:1/gpu:0");
      b = a.t().matmul(a);
    }
    {
      DeviceScope on("/job:ps/task:0/cpu:0");
      c = b.sum(0) + a.mean();
    }
    DeviceScope on("/job:worker/task:1/gpu:1");
    return b * c + a.max();
  });
  const Tensor x = torch::linspace(-1, 1, 12, at::kDouble).reshape({4, 3});
  for (int i = 0; i < 3; ++i) {
    const Tensor a = (x + i).cos(), b = a.t().matmul(a);
    EXPECT_TRUE(torch::equal(session.run(f, x + i), b * (b.sum(0) + a.mean()) + a.max()));
  }
  cluster.wait_until_no_steps();
}

struct TwoLayers : torch::nn::Module {
  TwoLayers(const std::string& first_device, const std::string& second_device) {
    to(at::kDouble);
    DeviceScope on(first_device);
    track(*first, "first");
    DeviceScope on_second(second_device);
    track(*second, "second");
  }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 16));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(16, 4));
};

// Trains for ten steps by `run`, which gets the step and its arguments. Returns the losses and the
// parameters.
template <typename Run>
std::vector<Tensor> train(const std::string& first, const std::string& second, const Run& run) {
  torch::manual_seed(3);
  auto net = std::make_shared<TwoLayers>(first, second);
  Adam optimizer(net, {.lr = 0.01});
  const auto step = function("step", [&](const Tensor& x, const Tensor& y) {
    const Tensor loss = torch::mse_loss(net->forward(x), y);
    optimizer.minimize(loss, {.clip_norm = 1});
    return loss;
  });
  const auto read = function("read", [&] {
    std::vector<Tensor> all;
    for (const Tensor& parameter : net->parameters()) all.push_back(parameter.detach().clone());
    return all;
  });
  torch::manual_seed(4);
  std::vector<Tensor> results;
  for (int i = 0; i < 10; ++i) {
    const Tensor x = torch::rand({4, 8}, at::kDouble), y = torch::rand({4, 4}, at::kDouble);
    results.push_back(run(step, x, y));
  }
  for (const Tensor& parameter : run(read)) results.push_back(parameter);
  return results;
}

TEST_F(SessionDevicesTest, TrainVariablesOnDevices) {
  InProcessTestCluster cluster({.workers = 2, .ps = 1});
  const auto expected =
      train("/cpu:0", "/cpu:0", [](const auto& f, const auto&... x) { return f(x...); });
  const std::vector<std::pair<std::string, std::string>> places = {
      {"/gpu:0", "/gpu:1"},
      {"/gpu:1", "/cpu:0"},
      {"/job:worker/task:1", "/gpu:1"},
      {"/job:ps/task:0/cpu:0", "/job:worker/task:1/gpu:1"}};
  for (const auto& [first, second] : places) {
    SCOPED_TRACE(first + " " + second);
    Session session(cluster.target(kMaster));
    const auto got =
        train(first, second, [&](const auto& f, const auto&... x) { return session.run(f, x...); });
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].is_cpu());
      EXPECT_LE(largest_difference(got[i], expected[i]), 1e-12) << "result " << i;
    }
  }
}

TEST_F(SessionDevicesTest, KeepVariablesInTheMemoryOfTheirDevice) {
  InProcessTestCluster cluster({.workers = 2, .ps = 0});
  const int64_t before = stand_in_counters(1).bytes;
  {
    std::optional<Variable> made;
    {
      DeviceScope on("/job:worker/task:1/gpu:1");
      made.emplace("v", torch::ones({1000, 100}, at::kDouble));
    }
    const Variable& v = *made;
    Session session(cluster.target(kMaster));
    session.run([&] { v.assign_add(torch::full({1000, 100}, 2.0, at::kDouble)); });
    EXPECT_GE(stand_in_counters(1).bytes - before, 800'000);
    // These reads and changes name the task only, whose default device is another one.
    EXPECT_EQ(v.read().sum().item<double>(), 300'000);
    v.assign(torch::zeros({1000, 100}, at::kDouble));
    v.assign_add(torch::ones({1000, 100}, at::kDouble));
    EXPECT_EQ(session.run([&] { return v.read().sum(); }).item<double>(), 100'000);
  }
  cluster.wait_until_no_steps();
  EXPECT_TRUE(
      wait_until([&] { return stand_in_counters(1).bytes == before; }, std::chrono::seconds(10)))
      << "closing the session did not free the variable";
}

TEST_F(SessionDevicesTest, UseTheFirstAcceleratorUnlessAnotherDeviceIsNamed) {
  InProcessTestCluster cluster({.workers = 1, .ps = 0});
  const auto f = function("f", [](const Tensor& x) {
    const Tensor a = x + 1;
    DeviceScope on("/gpu:7");
    return a * 2;
  });
  const Tensor x = torch::ones({2});
  Session session(cluster.target(kMaster));
  EXPECT_EQ(session.run(f, x).sum().item<float>(), 8);
  const std::string text = session.graph(f, x).explain();
  EXPECT_THAT(text, HasSubstr("/job:worker/task:0/gpu:0"));
  EXPECT_THAT(text, testing::Not(HasSubstr("cpu:0")));
  Session strict(cluster.target(kMaster), {.strict_placement = true});
  EXPECT_THAT(error_of([&] { strict.run(f, x); }).what(),
              HasSubstr("does not exist; /job:worker/task:0 has /job:worker/task:0/cpu:0, "
                        "/job:worker/task:0/gpu:0, /job:worker/task:0/gpu:1"));
}

TEST_F(SessionDevicesTest, TasksDrawDifferentNumbersOnDevicesOfOneName) {
  InProcessTestCluster cluster({.workers = 2, .ps = 0});
  Session session(cluster.target(kMaster));
  const auto draw = function("draw",
                             [] {
                               std::vector<Tensor> drawn;
                               for (const char* task : {"0", "1"}) {
                                 DeviceScope on(std::string("/job:worker/task:") + task + "/gpu:0");
                                 drawn.push_back(torch::rand({8}));
                               }
                               return drawn;
                             },
                             {.seed = 7});
  const std::vector<Tensor> first = session.run(draw);
  EXPECT_FALSE(torch::equal(first[0], first[1])) << first[0];
  draw.set_step(0);
  EXPECT_TRUE(torch::equal(session.run(draw)[0], first[0]));
}

struct Mlp : torch::nn::Module {
  Mlp() { to(at::kDouble); }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 16));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(16, 4));
};

TEST_F(SessionDevicesTest, WorkersComputeOnTheirAcceleratorAndServersOnTheCpu) {
  InProcessTestCluster cluster({.workers = 1, .ps = 1});
  ParameterServerStrategy strategy{Cluster(cluster.spec())};
  ClusterCoordinator coordinator(strategy);
  torch::manual_seed(3);
  auto here = std::make_shared<Mlp>();
  torch::manual_seed(3);
  auto there = strategy.distribute<Mlp>();
  const Adam local(here, {.lr = 0.01}), remote(there, {.lr = 0.01});
  const auto make_step = [](const std::string& name, Mlp& net, const Adam& optimizer) {
    return function(name, [&](const Tensor& x, const Tensor& y) {
      const Tensor loss = torch::mse_loss(net.forward(x), y);
      optimizer.minimize(loss);
      return loss;
    });
  };
  const auto local_step = make_step("local", *here, local);
  const auto remote_step = make_step("remote", *there, remote);
  const std::vector<int64_t> kernels = kernels_of([&] {
    for (int i = 0; i < 10; ++i) {
      const Tensor x = torch::rand({4, 8}, at::kDouble), y = torch::rand({4, 4}, at::kDouble);
      const Tensor loss = coordinator.fetch(coordinator.schedule(remote_step, x, y));
      EXPECT_LE(largest_difference(loss, local_step(x, y)), 1e-12) << "step " << i;
    }
    coordinator.join();
  });
  EXPECT_GE(kernels[0], 100);
  EXPECT_EQ(kernels[1], 0);
  const auto mine = track(here), theirs = track(there);
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_LE(largest_difference(theirs[i].read(), mine[i].read()), 1e-12) << mine[i].name();
  }
}

// Sessions and parameter servers may share a variable.
TEST_F(SessionDevicesTest, PullsAndPushesReachVariablesOnAnAccelerator) {
  VariableStore store;
  const Tensor initial = torch::arange(6, at::kFloat).reshape({3, 2});
  const auto hosted = value_or_throw(store.create("c", "w", initial, gpu(1)));
  ASSERT_EQ(hosted->tensor.device(), gpu(1));
  const auto variable = value_or_throw(store.lookup("c", "w"));
  value_or_throw(variable->apply({.values = torch::ones({3, 2})}, {}, {}));
  value_or_throw(variable->apply({.kind = Update::Kind::kAssign,
                                  .ids = torch::tensor({2}, at::kLong),
                                  .values = torch::full({1, 2}, 9.0)},
                                 {}, {}));
  const Tensor wanted = torch::tensor({1.0f, 2.0f, 3.0f, 4.0f, 9.0f, 9.0f}).reshape({3, 2});
  Tensor all = torch::empty({3, 2}), row = torch::empty({1, 2});
  variable->read({}, all.data_ptr());
  EXPECT_TRUE(torch::equal(all, wanted));
  variable->read(torch::tensor({1}, at::kLong), row.data_ptr());
  EXPECT_TRUE(torch::equal(row, wanted.narrow(0, 1, 1)));
  EXPECT_TRUE(
      torch::equal(variable->snapshot(std::make_shared<SnapshotBudget>(1 << 20)).contents, wanted));
  const float zero = 0;
  variable->overwrite(-1, 4, &zero, sizeof(zero));
  variable->read({}, all.data_ptr());
  EXPECT_EQ(all[0][1].item<float>(), 0);
  EXPECT_EQ(all[2][1].item<float>(), 9);
}

}  // namespace
}  // namespace trireme
