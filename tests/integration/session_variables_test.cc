// Once a step of a session has used a variable, its contents are on a task. Reads, assignments and
// the learning rate of an optimizer go there, and the stale memory in the program cannot be used by
// mistake. start() sends the arguments that it was given, whatever the caller does to them later.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/clock.h"
#include "trireme/capture/device_scope.h"
#include "trireme/data/dataset.h"
#include "trireme/function/module.h"
#include "trireme/optim/optimizer.h"
#include "trireme/runtime/session.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/libtorch_error.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

const TaskId kWorker0 = {"worker", 0};
const TaskId kWorker1 = {"worker", 1};

class SessionVariables : public testing::Test {
 protected:
  InProcessTestCluster cluster_{{.workers = 2, .ps = 1}};
};

Variable variable_on(const std::string& device, const std::string& name, const Tensor& initial) {
  const DeviceScope on(device);
  return Variable(name, initial);
}

TEST_F(SessionVariables, TheLearningRateCanBeSetAfterTheFirstStep) {
  torch::manual_seed(1);
  torch::nn::Linear net(3, 1);
  const Sgd optimizer(net, {.lr = 0.1});
  const auto step = function("step", [&](const Tensor& x) {
    optimizer.minimize(net->forward(x).pow(2).sum());
    return net->weight.detach() * 1;
  });
  Session session(cluster_.target(kWorker0));
  const Tensor x = torch::ones({2, 3}), before = net->weight.detach().clone();
  const Tensor first = session.run(step, x);
  EXPECT_FALSE(first.equal(before));
  EXPECT_DOUBLE_EQ(optimizer.lr(), 0.1);
  optimizer.set_lr(0.0);
  EXPECT_DOUBLE_EQ(optimizer.lr(), 0.0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(session.run(step, x).equal(first)) << i;
  optimizer.set_lr(0.1);
  EXPECT_FALSE(session.run(step, x).equal(first));
}

TEST_F(SessionVariables, ReadsAndAssignmentsGoToTheSession) {
  const Variable v("v", torch::zeros({2}), {.trainable = false});
  const auto count = function("count", [&] {
    v.assign_add(torch::ones({2}));
    return v.read() * 1;
  });
  const auto first_element = [&] { return v.read()[0].item<float>(); };
  {
    Session session(cluster_.target(kWorker0));
    for (int i = 0; i < 3; ++i) session.run(count);
    EXPECT_EQ(first_element(), 3);
    v.assign(torch::full({2}, 100, torch::kInt64));
    EXPECT_EQ(session.run(count)[0].item<float>(), 101);
    v.assign_add(torch::full({2}, 0.5, torch::kDouble));
    v.assign_sub(torch::full({2}, 2));
    EXPECT_EQ(first_element(), 99.5);
    // A fetched copy is the caller's own.
    v.read().fill_(-1);
    EXPECT_EQ(first_element(), 99.5);
    EXPECT_THAT(error_text([&] { v.assign(torch::zeros({3})); }),
                HasSubstr("a variable keeps its shape"));
  }
  // The session's variables are deleted with it.
  EXPECT_EQ(first_element(), 0);
  v.assign(torch::full({2}, 7));
  EXPECT_EQ(count()[0].item<float>(), 8);
  Session session(cluster_.target(kWorker0));
  EXPECT_EQ(session.run(count)[0].item<float>(), 9);
}

TEST_F(SessionVariables, VariablesOfEachDtypeCanBeReadAndWritten) {
  Session session(cluster_.target(kWorker0));
  for (const auto dtype : {torch::kInt64, torch::kUInt8, torch::kDouble, torch::kBFloat16,
                           torch::kBool, torch::kComplexFloat}) {
    const Variable v(absl::StrCat("v_", dtype), torch::ones({2, 3}, dtype).t(),
                     {.trainable = false});
    session.run([&] { return v.read() * 1; });
    EXPECT_TRUE(v.read().equal(torch::ones({3, 2}, dtype))) << dtype;
    v.assign(torch::zeros({3, 2}));
    EXPECT_TRUE(v.read().equal(torch::zeros({3, 2}, dtype))) << dtype;
    EXPECT_EQ(v.read().scalar_type(), dtype);
    if (dtype == torch::kBool) continue;
    v.assign_add(torch::full({3, 2}, 5, dtype));
    EXPECT_TRUE(v.read().equal(torch::full({3, 2}, 5, dtype))) << dtype;
  }
}

TEST_F(SessionVariables, VariablesWithADeviceAndTheStateOfOptimizersCanBeRead) {
  torch::manual_seed(1);
  torch::nn::Linear net(3, 1);
  {
    const DeviceScope on("/job:worker/task:1");
    track(net, "net");
  }
  const Adam optimizer(net, {.lr = 0.1});
  const auto step =
      function("step", [&](const Tensor& x) { optimizer.minimize(net->forward(x).pow(2).sum()); });
  const std::vector<Variable> state = optimizer.state();
  EXPECT_THAT(error_text([&] { state.back().read(); }), HasSubstr("it lives on '/job:worker"));
  Session session(cluster_.target(kWorker0));
  session.run(step, torch::ones({2, 3}));
  // The scope around a read or an assignment does not matter.
  const auto read = [](const Variable& variable) {
    const DeviceScope scope("/job:ps/task:0");
    return variable.read();
  };
  for (const Variable& variable : state) {
    EXPECT_GT(read(variable).abs().sum().item<double>(), 0) << variable.name();
    EXPECT_TRUE(read(variable).equal(session.run([&] { return variable.read(); })))
        << variable.name();
  }
  for (const Variable& variable : optimizer.variables()) {
    const int64_t elements = read(variable).numel();
    {
      const DeviceScope scope("/job:ps/task:0");
      variable.assign(torch::full(read(variable).sizes(), 5, torch::kInt64));
      variable.assign_sub(torch::full(read(variable).sizes(), 3));
    }
    EXPECT_EQ(session.run([&] { return variable.read().sum(); }).item<float>(), 2 * elements);
  }
}

TEST_F(SessionVariables, TheMemoryInTheProgramIsLockedUntilTheSessionIsClosed) {
  torch::manual_seed(1);
  torch::nn::Linear net(3, 1);
  const Variable weight = track(net, "net")[0];
  const Tensor x = torch::ones({2, 3}), before = net->weight.detach().clone();
  const auto train = function("train", [&] {
    weight.assign_add(torch::ones({1, 3}));
    return net->forward(x);
  });
  {
    Session session(cluster_.target(kWorker0));
    session.run(train);
    const auto expect_locked = [&] {
      const auto message =
          AllOf(HasSubstr("': its contents are held by the session at grpc://"),
                HasSubstr("on /job:worker/task:0"), HasSubstr("use variable.read()"));
      EXPECT_THAT(libtorch_error([&] { net->forward(x); }), message);
      EXPECT_THAT(libtorch_error([&] { net->weight.data_ptr<float>(); }), message);
      EXPECT_THAT(libtorch_error([&] {
                    std::ostringstream out;
                    torch::save(net, out);
                  }),
                  message);
    };
    expect_locked();
    // A capture works on copies, whether it succeeds or not, and leaves the lock.
    const auto other = function("other", [&] { return net->forward(x) * 2; });
    other.graph();
    expect_locked();
    EXPECT_TRUE(session.run(other).equal(session.run([&] { return net->forward(x) * 2; })));
    expect_locked();
    EXPECT_THAT(error_text([&] { train(); }),
                HasSubstr("its variable 'net.weight' is held by the session at grpc://"));
    EXPECT_TRUE(weight.read().equal(before + 1));
  }
  EXPECT_TRUE(net->weight.equal(before));
  train();
  EXPECT_TRUE(net->weight.equal(before + 1));
}

TEST_F(SessionVariables, CapturesAreCheckedWhileASessionHoldsVariables) {
  torch::nn::Linear held(2, 1), other(2, 1);
  track(held, "held");
  track(other, "other");
  // Adds to the gradient that the step before has left. A check plants one to find that out.
  const auto leaves_gradients = function("leaves_gradients", [&](const Tensor& x) {
    other->forward(x).sum().backward();
    return other->weight.grad() * 1;
  });
  const auto error = [&] { return error_text([&] { leaves_gradients(torch::ones({1, 2})); }); };
  EXPECT_THAT(error(), HasSubstr("gradient that an earlier step left"));
  Session session(cluster_.target(kWorker0));
  session.run([&] { return held->forward(torch::ones({1, 2})); });
  EXPECT_THAT(error(), HasSubstr("gradient that an earlier step left"));
}

TEST_F(SessionVariables, EagerModeRefusesVariablesThatASessionHolds) {
  const Variable v("v", torch::zeros({}));
  const auto count = function("count", [&] { v.assign_add(torch::ones({})); });
  Session session(cluster_.target(kWorker0));
  session.run(count);
  run_eagerly(true);
  const std::string error = error_text([&] { count(); });
  run_eagerly(false);
  EXPECT_THAT(error, HasSubstr("variable 'v': eager mode computes in this program, but the session "
                               "at grpc://"));
  EXPECT_EQ(v.read().item<float>(), 1);
}

TEST_F(SessionVariables, DifferentCopiesInTwoSessionsAreNamed) {
  const Variable v("v", torch::zeros({}));
  const auto count = function("count", [&] { v.assign_add(torch::ones({})); });
  Session one(cluster_.target(kWorker0));
  one.run(count);
  {
    Session two(cluster_.target(kWorker1));
    for (int i = 0; i < 2; ++i) two.run(count);
    const std::string first = absl::StrCat("the session at ", cluster_.target(kWorker0)),
                      second = absl::StrCat("the session at ", cluster_.target(kWorker1));
    for (const std::string& error :
         {error_text([&] { v.read(); }), error_text([&] { v.assign(torch::ones({})); }),
          error_text([&] { v.assign_add(torch::ones({})); }),
          error_text([&] { v.assign_sub(torch::ones({})); })}) {
      EXPECT_THAT(error, AllOf(HasSubstr("variable 'v': several sessions hold a copy"),
                               HasSubstr(first), HasSubstr(second)));
    }
    EXPECT_EQ(two.run([&] { return v.read(); }).item<float>(), 2);
  }
  EXPECT_EQ(v.read().item<float>(), 1);
}

TEST_F(SessionVariables, SessionsThatShareAContainerHoldOneCopy) {
  const Variable v = variable_on("/job:ps/task:0", "v", torch::zeros({}));
  const auto count = function("count", [&] { v.assign_add(torch::ones({})); });
  {
    Session one(cluster_.target(kWorker0), {.keep = true, .container = "job"});
    one.run(count);
    Session two(cluster_.target(kWorker1), {.keep = true, .container = "job"});
    two.run(count);
    EXPECT_EQ(v.read().item<float>(), 2);
    v.assign(torch::full({}, 10));
    EXPECT_EQ(one.run([&] { return v.read(); }).item<float>(), 10);
  }
  // The variable stays in the container, and the program's tensor stays locked.
  const auto in_container = HasSubstr("container 'job' on /job:ps/task:0");
  EXPECT_THAT(error_text([&] { v.read(); }),
              AllOf(HasSubstr("variable 'v': its contents are in"), in_container,
                    HasSubstr("open a tr::Session with this container")));
  Session later(cluster_.target(kWorker1), {.resume = true, .container = "job"});
  later.run(count);
  EXPECT_EQ(v.read().item<float>(), 11);
}

TEST_F(SessionVariables, ASharedContainerStartsAfreshAfterItsLastSession) {
  const Variable v = variable_on("/job:ps/task:0", "v", torch::zeros({}));
  const auto count = function("count", [&] { v.assign_add(torch::ones({})); });
  for (int i = 0; i < 2; ++i) {
    Session session(cluster_.target(kWorker0), {.container = "job"});
    session.run(count);
    EXPECT_EQ(session.run([&] { return v.read(); }).item<float>(), 1) << "session " << i;
  }
  EXPECT_EQ(error_of([&] { Session session(cluster_.target(kWorker0), {.job = "ads"}); }).code(),
            ErrorCode::kInvalidArgument)
      << "a job without a container";
}

TEST_F(SessionVariables, ALostVariableStartsAgainFromTheProgramsValue) {
  const Variable v = variable_on("/job:ps/task:0", "v", torch::full({}, 5.0));
  const auto count = function("count", [&] {
    v.assign_add(torch::ones({}));
    return v.read() * 1;
  });
  Session session(cluster_.target(kWorker0), {.timeout = seconds(20)});
  for (int i = 0; i < 3; ++i) session.run(count);
  EXPECT_EQ(v.read().item<float>(), 8);
  const auto lose = [&] {
    cluster_.restart({"ps", 0});
    // A step that reaches the new incarnation before it is prepared fails once.
    for (int i = 0; i < 3; ++i) {
      const std::string error = error_text([&] { v.read(); });
      if (error.find("no longer exists") != std::string::npos) return;
    }
    FAIL() << "the variable was not reported as lost";
  };
  lose();
  session.initialize({v});
  EXPECT_EQ(session.run(count).item<float>(), 6);
  EXPECT_EQ(v.read().item<float>(), 6);
  lose();
  session.initialize({v});
  v.assign(torch::full({}, 20));
  EXPECT_EQ(session.run(count).item<float>(), 21);
}

TEST_F(SessionVariables, ANewVariableDoesNotGetTheContentsOfAnEarlierOne) {
  Session session(cluster_.target(kWorker0));
  const auto run = [&](double initial) {
    const Variable v("v", torch::full({}, initial));
    return session.run([&] { return v.read() * 1; }).item<double>();
  };
  EXPECT_EQ(run(1), 1);
  EXPECT_THAT(error_text([&] { run(2); }),
              HasSubstr("/job:worker/task:0: variable 'v': the session has the contents of an "
                        "earlier variable with this name"));
}

TEST_F(SessionVariables, ReadsOfManyVariablesDoNotEvictTheGraphOfAStep) {
  // The master keeps 256 graphs, and each read of another variable is one.
  std::vector<Variable> variables;
  for (int i = 0; i < 300; ++i) {
    variables.emplace_back(absl::StrCat("v", i), torch::full({}, i), VariableOptions{false});
  }
  const auto step = function("step",
                             [&] {
                               Tensor sum = torch::zeros({});
                               for (const Variable& v : variables) sum = sum + v.read();
                               return sum;
                             },
                             {.check_capture = false});
  Session session(cluster_.target(kWorker0));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(session.run(step).item<float>(), 300 * 299 / 2);
    for (int i = 0; i < 300; ++i) EXPECT_EQ(variables[i].read().item<float>(), i);
  }
}

TEST_F(SessionVariables, ThreadsReadWhileStepsRunAndTheSessionEnds) {
  const Variable v("v", torch::zeros({1000}));
  const auto count = function("count", [&] { v.assign_add(torch::ones({1000})); });
  for (int round = 0; round < 5; ++round) {
    auto session = std::make_unique<Session>(cluster_.target(kWorker0));
    session->run(count);
    std::promise<void> reading;
    auto reader = std::async(std::launch::async, [&] {
      // Reads until the session is closed, when a read fails or gets the program's value.
      bool saw_last_step = false;
      for (const Time limit = after(seconds(30)); Clock::real().now() < limit;) {
        float number = 0;
        const std::string error = error_text([&] {
          const Tensor contents = v.read();
          number = contents[0].item<float>();
          EXPECT_TRUE(contents.equal(torch::full({1000}, number)));
        });
        if (error != "no error") return error;
        if (number == 0) return std::string("closed");
        if (number == 20 && !std::exchange(saw_last_step, true)) reading.set_value();
      }
      return std::string("the session was not closed in time");
    });
    for (int i = 1; i < 20; ++i) session->run(count);
    ASSERT_EQ(reading.get_future().wait_for(seconds(30)), std::future_status::ready);
    session.reset();
    ASSERT_EQ(reader.wait_for(seconds(60)), std::future_status::ready);
    EXPECT_NE(reader.get(), "the session was not closed in time");
    EXPECT_EQ(v.read()[0].item<float>(), 0);
  }
}

TEST_F(SessionVariables, AStartedStepSeesTheArgumentsThatWerePassed) {
  Session session(cluster_.target(kWorker0));
  const auto range = function("range", [](const Tensor& x, std::optional<Tensor> none) {
    return torch::stack({x.min(), x.max()}) + (none ? 1 : 0);
  });
  Tensor x = torch::ones({16 << 20});  // 64 MiB
  for (int i = 0; i < 8; ++i) {
    x.fill_(1);
    std::future<Tensor> result;
    {
      const DeviceScope scope("/job:worker/task:0");
      result = session.start(range, x, std::optional<Tensor>());
    }
    x.fill_(2);
    EXPECT_TRUE(result.get().equal(torch::ones({2}))) << i;
  }
  // A view, which is not contiguous, beside elements of an iterator.
  const auto add = function("add", [](const Tensor& x, Iterator& numbers) {
    return torch::stack({x.sum(), numbers.next().sum()});
  });
  Iterator numbers = Dataset::range(0, 100).batch(10).iterator();
  Tensor table = torch::ones({4096, 1024});
  for (int i = 0; i < 3; ++i) {
    table.fill_(1);
    auto result = session.start(add, table.t().narrow(0, 0, 512), numbers);
    table.fill_(2);
    EXPECT_EQ(result.get()[0].item<float>(), 4096 * 512) << i;
  }
}

}  // namespace
}  // namespace trireme
