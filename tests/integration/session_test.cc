// A session runs operators and keeps variables on the tasks that a program names, shares variables
// within a container, names the task and operator of an error, and frees what it used. The servers
// are real, but run in this process.
#include "trireme/runtime/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <future>
#include <stop_token>
#include <thread>

#include "trireme/base/sanitizer.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_scope.h"
#include "trireme/function/module.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;

const TaskId kMaster = {"worker", 0};

TEST(Session, RunsOperatorsWhereTheyArePinned) {
  InProcessTestCluster cluster;
  Session session(cluster.target(kMaster));
  EXPECT_EQ(session.master(), "/job:worker/task:0");
  const Tensor c = session.run([] {
    Tensor a, b;
    {
      DeviceScope on("/job:ps/task:0/cpu:0");
      a = torch::ones({});
    }
    {
      DeviceScope on("/job:worker/task:1/gpu:1");
      b = a + 2;
    }
    return a + b;
  });
  EXPECT_EQ(c.item<float>(), 4);
  for (const TaskId& task : {TaskId{"ps", 0}, TaskId{"worker", 1}, TaskId{"worker", 0}}) {
    EXPECT_EQ(cluster.describe(task).counters.at("step_operators_run"), 1u) << task;
  }
  EXPECT_EQ(cluster.describe({"ps", 1}).counters.at("step_operators_run"), 0u);
  cluster.wait_until_no_steps();
}

TEST(Session, ReplaysAFunctionWithManySteps) {
  InProcessTestCluster cluster;
  Session session(cluster.target(kMaster));
  const auto f = function("f", [](const Tensor& x, std::optional<Tensor> y) {
    DeviceScope on("/job:worker/task:1");
    return std::make_pair(x * 2, y ? *y + 1 : x);
  });
  for (int i = 0; i < 20; ++i) {
    const auto [a, b] = session.run(f, torch::full({3}, i), std::optional<Tensor>());
    EXPECT_EQ(a[0].item<int64_t>(), 2 * i);
    EXPECT_EQ(b[0].item<int64_t>(), i);
  }
  EXPECT_EQ(f.captures(), 1);
  std::vector<std::future<std::pair<Tensor, Tensor>>> results;
  for (int i = 0; i < 64; ++i) {
    results.push_back(session.start(f, torch::full({3}, i), std::optional<Tensor>()));
  }
  for (int i = 0; i < 64; ++i) EXPECT_EQ(results[i].get().first[0].item<int64_t>(), 2 * i);
  EXPECT_THAT(session.graph(f, torch::full({3}, 1), std::optional<Tensor>()).explain(),
              HasSubstr("on /job:worker/task:1/cpu:0: '/job:worker/task:1'"));
}

TEST(Session, VariablesLiveOnTheirTasks) {
  InProcessTestCluster cluster;
  DeviceScope setter(replica_device_setter({.ps_tasks = 2}));
  const Variable v1("v1", torch::tensor(1.0)), v2("v2", torch::tensor(2.0));
  Session session(cluster.target(kMaster));
  EXPECT_EQ(session.run([&] { return v1.read() + v2.read(); }).item<double>(), 3);
  const auto add = function("add", [&](const Tensor& x) { v1.assign_add(x); });
  for (int i = 0; i < 10; ++i) session.run(add, torch::tensor(1.0));
  EXPECT_EQ(session.run([&] { return v1.read() * 1; }).item<double>(), 11);
  {
    // Another session has a container of its own and starts from the program's values.
    Session other(cluster.target({"worker", 1}));
    EXPECT_EQ(other.run([&] { return v1.read() * 1; }).item<double>(), 1);
  }
}

TEST(Session, SessionsOfAContainerShareVariablesThatOneInitialises) {
  InProcessTestCluster cluster;
  std::optional<Variable> v;
  {
    DeviceScope on("/job:ps/task:1");
    v.emplace("shared", torch::tensor(5));
  }
  const auto read = function("read", [&] { return v->read() + 0; });
  std::future<int64_t> waits = std::async(std::launch::async, [&] {
    Session other(cluster.target({"worker", 1}), {.container = "job", .initializes = false});
    return other.run(read).item<int64_t>();
  });
  EXPECT_EQ(waits.wait_for(milliseconds(200)), std::future_status::timeout);
  Session chief(cluster.target(kMaster), {.container = "job"});
  EXPECT_EQ(chief.run(read).item<int64_t>(), 5);
  EXPECT_EQ(waits.get(), 5);
  chief.run([&] { v->assign_add(torch::tensor(1)); });
  Session later(cluster.target({"worker", 2}), {.container = "job", .initializes = false});
  EXPECT_EQ(later.run(read).item<int64_t>(), 6);

  Session alone(cluster.target(kMaster),
                {.container = "nobody", .initializes = false, .timeout = seconds(2)});
  const Error error = error_of([&] { alone.run(read); });
  EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(error.what(), HasSubstr("/job:ps/task:1: variable 'shared': it was not initialised"));
}

TEST(Session, ClosingASessionEndsItOnItsTasks) {
  InProcessTestCluster cluster;
  std::optional<Variable> v;
  {
    DeviceScope on("/job:ps/task:0");
    v.emplace("v", torch::ones({1000}));
  }
  const auto sessions = [&](const TaskId& task) {
    return cluster.describe(task).counters.at("sessions_active");
  };
  {
    Session session(cluster.target(kMaster));
    session.run([&] { return v->read().sum(); });
    EXPECT_EQ(sessions({"ps", 0}), 1u);
  }
  for (const Time limit = after(seconds(10));
       Clock::real().now() < limit && sessions({"ps", 0}) > 0;) {
  }
  EXPECT_EQ(sessions({"ps", 0}), 0u);
}

TEST(Session, ErrorsNameTaskAndOperator) {
  InProcessTestCluster cluster;
  Session session(cluster.target(kMaster));
  const auto f = function("f", [](const Tensor& x, const Tensor& ids) {
    Tensor y;
    {
      DeviceScope on("/job:worker/task:1");
      y = x.index_select(0, ids);
    }
    return y + 1;
  });
  session.run(f, torch::ones({3}), torch::tensor({0}));
  const Error error = error_of([&] { session.run(f, torch::ones({3}), torch::tensor({7})); });
  EXPECT_EQ(error.origin().task, "/job:worker/task:1");
  EXPECT_THAT(error.what(), HasSubstr("operator 'aten::index_select'"));
  // The session is still usable.
  EXPECT_EQ(session.run(f, torch::ones({3}), torch::tensor({2})).item<float>(), 2);
  cluster.wait_until_no_steps();

  EXPECT_THAT(error_of([&] {
                session.run([] {
                  DeviceScope on("/job:worker/task:9");
                  return torch::ones({});
                });
              }).what(),
              HasSubstr("device '/job:worker/task:9', named by scope '/job:worker/task:9', is on "
                        "/job:worker/task:9, which is not a task of this cluster"));
  EXPECT_THAT(error_of([] { Session bad("localhost:1"); }).what(),
              HasSubstr("is not of the form grpc://HOST:PORT"));
}

TEST(Session, StrictPlacementRejectsMissingDevices) {
  InProcessTestCluster cluster;
  Session session(cluster.target(kMaster), {.strict_placement = true});
  EXPECT_THAT(error_of([&] {
                session.run([] {
                  DeviceScope on("/gpu:0");
                  return torch::ones({});
                });
              }).what(),
              HasSubstr("does not exist; /job:worker/task:0 has /job:worker/task:0/cpu:0"));
}

TEST(Session, RejectsVariablesOfParameterServers) {
  InProcessTestCluster cluster;
  Session session(cluster.target(kMaster));
  const ParameterServers servers(cluster.spec());
  const auto scope = servers.scope();
  const Variable v("shared", torch::zeros({}));
  const auto f = function("f", [&] { return v.read() + 1; });
  EXPECT_THAT(error_of([&] { session.run(f); }).what(),
              HasSubstr("function 'f': its variable 'shared' is on /job:ps/task:0"));
  EXPECT_EQ(f().item<float>(), 1);
}

// How often a step goes to the other task and back. Each of its operators waits for one there.
constexpr int kHops = kSanitized ? 500 : 2000;

TEST(Session, ACancelledStepStartsNoFurtherOperator) {
  InProcessTestCluster cluster;
  Session session(cluster.target(kMaster));
  const auto f = function("f",
                          [](Tensor x) {
                            for (int i = 0; i < kHops; ++i) {
                              {
                                DeviceScope on("/job:worker/task:1");
                                x = x.mm(x);
                              }
                              x = x.tanh();
                            }
                            return x;
                          },
                          {.check_capture = false});
  const Tensor x = torch::rand({64, 64});
  session.run(f, x);
  const auto operators = [&] {
    return cluster.describe({"worker", 1}).counters.at("step_operators_run") +
           cluster.describe(kMaster).counters.at("step_operators_run");
  };
  const uint64_t one_step = operators();
  // Returns how many operators ran after the cancellation.
  const auto cancel_in_mid_step = [&] {
    const uint64_t before = operators();
    std::stop_source stop;
    auto step = std::async(std::launch::async, [&] {
      return error_of([&] { session.run({.stop = stop.get_token()}, f, x); });
    });
    EXPECT_TRUE(wait_until([&] { return operators() > before; }, seconds(20)));
    const uint64_t at_cancellation = operators();
    stop.request_stop();
    EXPECT_EQ(step.get().code(), ErrorCode::kCancelled);
    cluster.wait_until_no_steps();
    const uint64_t at_end = operators();
    EXPECT_LT(at_end, before + one_step) << "the step ran to its end";
    return at_end - at_cancellation;
  };
  // Counts operators and not milliseconds, because other load slows both. One success in three
  // attempts is enough: this thread may have to wait for a core before it cancels.
  const uint64_t few = one_step / 10;
  EXPECT_TRUE(cancel_in_mid_step() < few || cancel_in_mid_step() < few ||
              cancel_in_mid_step() < few);
}

TEST(Session, ALostTaskIsNamedAndTheSessionContinuesOnceItIsBack) {
  InProcessTestCluster cluster;
  std::optional<Variable> v;
  {
    DeviceScope on("/job:ps/task:0");
    v.emplace("v", torch::tensor(1));
  }
  const auto plain = function("plain", [](const Tensor& x) {
    DeviceScope on("/job:ps/task:0");
    return x + 1;
  });
  const auto with_variable = function("with_variable", [&] { return v->read() + 1; });
  Session session(cluster.target(kMaster), {.timeout = seconds(20)});
  EXPECT_EQ(session.run(plain, torch::tensor(1)).item<int64_t>(), 2);
  EXPECT_EQ(session.run(with_variable).item<int64_t>(), 2);
  cluster.kill({"ps", 0});
  const Error lost = error_of([&] { session.run(plain, torch::tensor(1)); });
  EXPECT_EQ(lost.origin().task, "/job:ps/task:0") << lost.what();
  cluster.start({"ps", 0});
  cluster.wait_until_up();
  EXPECT_EQ(session.run(plain, torch::tensor(1)).item<int64_t>(), 2);
  // The variables of a killed task are lost, and reading one reports that.
  const Error gone = error_of([&] { session.run(with_variable); });
  EXPECT_THAT(gone.what(), HasSubstr("/job:ps/task:0: variable 'v'"));
  session.initialize({*v});
  EXPECT_EQ(session.run(with_variable).item<int64_t>(), 2);
}

// Returns the number of calls of a method that a task has served.
uint64_t calls_served(TestCluster& cluster, const TaskId& task, const std::string& method) {
  const auto counters = cluster.describe(task).counters;
  const auto found = counters.find("rpc_server/" + method + "/calls");
  return found == counters.end() ? 0 : found->second;
}

TEST(Session, PartsOnOtherTasksAreReleasedWhenATaskIsLost) {
  InProcessTestCluster cluster;
  const auto across = function("across", [](const Tensor& x) {
    Tensor y;
    {
      DeviceScope on("/job:worker/task:1");
      y = x + 1;
    }
    DeviceScope on("/job:ps/task:0");
    return y * 2;
  });
  Session session(cluster.target(kMaster), {.timeout = seconds(20)});
  const auto dropped = [&] {
    return calls_served(cluster, {"worker", 1}, "trireme.Worker/DropParts");
  };
  for (uint64_t losses = 0; losses < 2; ++losses) {
    EXPECT_EQ(session.run(across, torch::tensor(1)).item<int64_t>(), 4);
    EXPECT_EQ(dropped(), losses);
    cluster.kill({"ps", 0});
    EXPECT_EQ(error_of([&] { session.run(across, torch::tensor(1)); }).origin().task,
              "/job:ps/task:0");
    cluster.start({"ps", 0});
    cluster.wait_until_up();
    EXPECT_TRUE(wait_until([&] { return dropped() == losses + 1; }, seconds(20)));
  }
}

TEST(Session, AGraphThatIsUsedStaysRegisteredWhileOthersAreEvicted) {
  InProcessTestCluster cluster({.workers = 1, .ps = 0});
  Session session(cluster.target(kMaster));
  const auto used = function("used", [](const Tensor& x) { return x + 1; });
  const auto of_many_shapes =
      function("of_many_shapes", [](const Tensor& x) { return x.sum(); }, {.check_capture = false});
  // The master keeps 256 graphs.
  for (int round = 0; round < 2; ++round) {
    for (int size = 1; size <= 300; ++size) {
      EXPECT_EQ(session.run(of_many_shapes, torch::ones({size})).item<float>(), size);
      EXPECT_EQ(session.run(used, torch::tensor(1)).item<int64_t>(), 2);
    }
  }
  EXPECT_EQ(calls_served(cluster, kMaster, "trireme.Master/RegisterGraph"), 1u + 2 * 300);
}

TEST(Session, ContinuesAfterItsMasterWasRestarted) {
  InProcessTestCluster cluster;
  Session session(cluster.target(kMaster), {.timeout = seconds(20)});
  const auto f = function("f", [](const Tensor& x) { return x + 1; });
  EXPECT_EQ(session.run(f, torch::tensor(1)).item<int64_t>(), 2);
  cluster.restart(kMaster);
  const Error lost = error_of([&] { session.run(f, torch::tensor(1)); });
  EXPECT_NE(lost.code(), ErrorCode::kOk);
  EXPECT_EQ(session.run(f, torch::tensor(1)).item<int64_t>(), 2);
}

TEST(Session, ServesManySessionsOfManyClientsAtOnce) {
  InProcessTestCluster cluster;
  const auto f = function("f", [](const Tensor& x) {
    Tensor y;
    {
      DeviceScope on("/job:ps/task:0");
      y = x + 1;
    }
    return y * 2;
  });
  f.graph(torch::tensor({0, 0}));
  std::vector<std::thread> clients;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      std::vector<std::unique_ptr<Session>> sessions;
      for (int i = 0; i < 8; ++i) {
        sessions.push_back(std::make_unique<Session>(cluster.target(kMaster)));
      }
      for (int round = 0; round < 5; ++round) {
        for (size_t i = 0; i < sessions.size(); ++i) {
          const int64_t number = client * 100 + static_cast<int64_t>(i) + round;
          const Tensor y = sessions[i]->run(f, torch::tensor({number, number}));
          EXPECT_EQ(y[1].item<int64_t>(), 2 * (number + 1));
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  // One client with sessions on four servers.
  std::vector<std::unique_ptr<Session>> sessions;
  for (const TaskId& task : {TaskId{"worker", 0}, {"worker", 1}, {"worker", 2}, {"ps", 1}}) {
    sessions.push_back(std::make_unique<Session>(cluster.target(task)));
  }
  std::vector<std::future<Tensor>> results;
  for (auto& session : sessions) results.push_back(session->start(f, torch::tensor({1, 2})));
  for (auto& result : results) EXPECT_EQ(result.get()[1].item<int64_t>(), 6);
  cluster.wait_until_no_steps();
}

struct StagedNet : torch::nn::Module {
  StagedNet() {
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 4));
  }
  Tensor forward(const Tensor& x) {
    Tensor hidden;
    {
      DeviceScope on("/job:worker/task:1");
      hidden = torch::dropout(torch::relu(first(x)), 0.2, true);
    }
    DeviceScope on("/job:worker/task:2");
    return second(hidden);
  }
  torch::nn::Linear first = nullptr, second = nullptr;
};

TEST(Session, TrainsOverThreeTasksWithTheLossesOfOneTask) {
  InProcessTestCluster cluster;
  const auto train = [&](bool over_tasks) {
    torch::manual_seed(3);
    auto net = std::make_shared<StagedNet>();
    if (over_tasks) {
      {
        DeviceScope on("/job:worker/task:1");
        track(*net->first, "first");
      }
      DeviceScope on("/job:worker/task:2");
      track(*net->second, "second");
    }
    Adam optimizer(net, {.lr = 0.01});
    const auto step = function("step",
                               [&](const Tensor& x, const Tensor& y) {
                                 const Tensor loss = torch::mse_loss(net->forward(x), y);
                                 optimizer.minimize(loss, {.clip_norm = 1});
                                 return loss;
                               },
                               {.seed = 7});
    std::vector<double> losses;
    Session session(cluster.target(kMaster));
    torch::manual_seed(4);
    for (int i = 0; i < 20; ++i) {
      const Tensor x = torch::rand({4, 8}), y = torch::rand({4, 4});
      if (over_tasks) {
        losses.push_back(session.run(step, x, y).item<double>());
      } else {
        run_eagerly(true);
        losses.push_back(step(x, y).item<double>());
        run_eagerly(false);
      }
    }
    return losses;
  };
  const std::vector<double> expected = train(false), got = train(true);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-6 * expected[i]) << "step " << i;
  }
  cluster.wait_until_no_steps();
}

}  // namespace
}  // namespace trireme
