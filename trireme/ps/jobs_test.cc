// Programs with variables on parameter servers never get values of another run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/function/function.h"
#include "trireme/function/module.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/update_rule.h"
#include "trireme/ps/job_list.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/ps/test_servers.h"
#include "trireme/ps/variable_store.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/manual_clock.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class JobsTest : public testing::Test {
 protected:
  ParameterServers start(ParameterServersOptions options) const {
    options.partitioner = FixedPartitioner(2);
    return ParameterServers(cluster_.spec(), options);
  }
  // Returns the value that a program with these options finds or makes, and adds 1 to it.
  double run_program(const ParameterServersOptions& options, double initial = 0) const {
    const ParameterServers servers = start(options);
    const auto scope = servers.scope();
    const Variable count("count", torch::full({2}, initial));
    const double found = count.read()[0].item<double>();
    count.assign_add(torch::ones({2}));
    return found;
  }

  TestServers cluster_{2};
};

TEST_F(JobsTest, ANewJobStartsFreshOnStandingServers) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run_program({}, i), i);
    EXPECT_EQ(run_program({.job = "ads"}, i), i);
    EXPECT_EQ(run_program({.job = "ads", .resume = true}, i), i) << "the last one ended in order";
  }
}

TEST_F(JobsTest, AKeptJobIsResumed) {
  EXPECT_EQ(run_program({.job = "ads", .keep = true}, 5), 5);
  EXPECT_EQ(run_program({.job = "ads", .resume = true, .keep = true}), 6);
  EXPECT_EQ(run_program({.job = "ads", .resume = true}), 7);
  EXPECT_EQ(run_program({.job = "ads", .resume = true}), 0);
}

TEST_F(JobsTest, ContainersOfAJobAreSeparate) {
  const ParameterServers one = start({.job = "ads", .container = "one"});
  const ParameterServers two = start({.job = "ads", .container = "two"});
  {
    const auto scope = one.scope();
    EXPECT_EQ(Variable("v", torch::tensor(1)).read().item<int64_t>(), 1);
  }
  const auto scope = two.scope();
  EXPECT_EQ(Variable("v", torch::tensor(2)).read().item<int64_t>(), 2);
}

TEST_F(JobsTest, AModuleMadeAfterTheFirstIsGoneHasItsOwnValues) {
  const ParameterServers servers = start({});
  const auto scope = servers.scope();
  for (const double value : {1.0, 2.0}) {
    torch::nn::Linear net(2, 1);
    {
      const torch::NoGradGuard no_gradients;
      net->weight.fill_(value);
    }
    const auto variables = track(net);
    const Sgd optimizer(net, {.lr = 0.1});
    EXPECT_EQ(variables[0].read()[0][0].item<double>(), value);
    variables[0].assign_add(torch::ones({1, 2}));
  }
}

TEST_F(JobsTest, ResumingWithALostServerNamesTheVariables) {
  run_program({.job = "ads", .keep = true});
  cluster_.start(1);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Error error = error_of([&] { run_program({.job = "ads", .resume = true}); });
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("job 'ads'"), HasSubstr("'count/part_0'"),
                                    HasSubstr("'count/part_1'"), HasSubstr("/job:ps/task:1")));
  }
  EXPECT_EQ(run_program({.job = "ads"}), 0);
}

TEST_F(JobsTest, AProgramThatFailsKeepsItsVariables) {
  EXPECT_EQ(error_of([&] {
              const ParameterServers servers = start({.job = "ads"});
              const auto scope = servers.scope();
              const Variable count("count", torch::full({2}, 3.0));
              count.assign_add(torch::ones({2}));
              throw Error(ErrorCode::kDataLoss, "it fails");
            }).code(),
            ErrorCode::kDataLoss);
  EXPECT_EQ(run_program({.job = "ads", .resume = true}), 4);
}

// The program is cut off from one server for longer than its lease: that server rejects the update,
// which the other one applies.
TEST(LapsedLease, EachServerAppliesAnUpdateOnce) {
  const auto lease = std::chrono::hours(1);  // the program does not renew it by itself
  ManualClock clock;
  TestServers cluster(2);
  cluster.start(1, {.clock = &clock});
  const ParameterServers servers(cluster.spec(),
                                 {.lease = lease, .partitioner = FixedPartitioner(2)});
  const auto scope = servers.scope();
  const Variable count("count", torch::zeros({2}));
  const torch::Tensor one = torch::ones({2});
  const Sgd optimizer({count}, {.lr = 1});
  const auto step = function("step", [&](const torch::Tensor& x) { count.assign_add(x); });
  const auto train = function("train", [&] { optimizer.minimize(-count.read().sum()); });
  const std::function<void()> updates[] = {[&] { step(one); }, [&] { train(); },
                                           [&] { count.assign_add(one); }};
  for (const auto& update : updates) update();
  double expected = 3;
  const auto rejected = [&] {
    return cluster.context(1).metrics.counters().at("ps/pushes_already_decided");
  };
  for (const auto& update : updates) {
    const uint64_t before = rejected();
    clock.advance(lease + std::chrono::minutes(1));
    update();
    EXPECT_GT(rejected(), before);
    EXPECT_TRUE(count.read().equal(torch::full({2}, ++expected))) << count.read();
  }
}

TEST_F(JobsTest, AnUpdateOfADroppedJobSaysSo) {
  const ParameterServers servers = start({.job = "ads", .lease = std::chrono::hours(1)});
  const auto scope = servers.scope();
  const Variable count("count", torch::zeros({2}));
  count.assign_add(torch::ones({2}));
  for (const int server : {0, 1}) {
    const TaskId task{"ps", server};
    Channel channel({.address = cluster_.spec().address(task), .task = task.to_string()});
    EXPECT_TRUE(value_or_throw(drop_job(channel, "ads", after(std::chrono::seconds(20)))));
  }
  const Error error = error_of([&] { count.assign_add(torch::ones({2})); });
  EXPECT_EQ(error.code(), ErrorCode::kAborted);
  EXPECT_THAT(error.what(), HasSubstr("trireme jobs drop"));
}

// Server 1 has no room for a large variable, so that creating one fails after server 0 has made its
// shard.
class FailedCreationTest : public JobsTest {
 protected:
  FailedCreationTest() { cluster_.start(1, {.memory_limit = 64}); }

  static void fail_to_create(double value) {
    const Variable count("count", torch::full({2}, value)), table("table", torch::zeros({100}));
    EXPECT_EQ(error_of([&] { count.read(); }).code(), ErrorCode::kResourceExhausted);
  }
};

TEST_F(FailedCreationTest, LeavesNothingToLaterVariables) {
  const ParameterServers servers = start({});
  const auto scope = servers.scope();
  fail_to_create(1);
  fail_to_create(2);
  const Variable count("count", torch::full({2}, 3.0)), table("table", torch::zeros({4}));
  EXPECT_TRUE(count.read().equal(torch::full({2}, 3.0))) << count.read();
  EXPECT_TRUE(table.read().equal(torch::zeros({4})));
}

TEST_F(FailedCreationTest, LeavesTheVariablesOfOtherPrograms) {
  const ParameterServers one = start({.job = "ads"}), two = start({.job = "ads"});
  {
    const auto scope = one.scope();
    EXPECT_EQ(Variable("count", torch::full({2}, 1.0)).read()[0].item<double>(), 1);
  }
  const auto scope = two.scope();
  fail_to_create(2);
  EXPECT_EQ(Variable("count", torch::full({2}, 3.0)).read()[0].item<double>(), 1);
}

// The program that began the generation fails, and one that has joined it goes on or has left.
TEST_F(FailedCreationTest, LeavesTheVariablesOfProgramsThatHaveJoined) {
  for (const bool leaves : {false, true}) {
    const ParameterServers one = start({.job = "ads"});
    std::optional<ParameterServers> two = start({.job = "ads"});
    {
      const auto scope = two->scope();
      EXPECT_EQ(Variable("count", torch::full({2}, 1.0)).read()[0].item<double>(), 1);
    }
    const auto scope = one.scope();
    fail_to_create(2);
    if (leaves) two.reset();
    EXPECT_EQ(Variable("count", torch::full({2}, 3.0)).read()[0].item<double>(), 1);
  }
}

TEST_F(JobsTest, ProgramsCannotDeleteOrTrainVariablesOfOtherJobs) {
  const auto one = cluster_.client(), two = cluster_.client();
  const Time deadline = after(std::chrono::seconds(20));
  throw_if_error(one->join({.id = "ads"}, deadline));
  throw_if_error(two->join({.id = "other"}, deadline));
  ShardPlacer placer(2, Placement::kRoundRobin, FixedPartitioner(2));
  const auto made = value_or_throw(one->create({{.layout = placer.place({{"w", {2}}})[0]}}));
  const auto sgd = internal::make_rule("sgd", {{"lr", 1.0}});
  for (const absl::Status& status : {two->remove(made), two->set_optimizer(made, *sgd)}) {
    EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
    EXPECT_THAT(describe(status), HasSubstr("does not belong to job 'other'"));
  }
  throw_if_error(one->set_optimizer(made, *internal::make_rule("adam", {})));
  throw_if_error(one->remove(made));
}

TEST_F(JobsTest, RejectsAnInvalidId) {
  EXPECT_THAT(error_text([&] { start({.job = "my job"}); }),
              HasSubstr("'my job' is not a valid id of a job"));
}

TEST(JobVariables, OnlyTheCurrentGenerationFindsVariablesByName) {
  VariableStore store;
  const VariableScope first("ads", 1, "default"), second("ads", 2, "default");
  EXPECT_EQ(error_code(store.create(first, "w", torch::ones({2})).status()), ErrorCode::kAborted)
      << "it has not begun";
  store.begin_job({"ads", 1}, /*fresh=*/true);
  const auto made = value_or_throw(store.create(first, "w", torch::ones({2})));
  const uint64_t made_handle = value_or_throw(store.lookup(first, "w"))->handle;
  EXPECT_NE(value_or_throw(store.create("default", "w", torch::zeros({2}))), made)
      << "a variable of no job";

  store.begin_job({"ads", 2}, /*fresh=*/false);
  EXPECT_EQ(value_or_throw(store.find(second, "w")), made);
  const auto found = value_or_throw(store.find_all(second, {"w", "other"}));
  EXPECT_EQ(found[0].generation, 1u);
  EXPECT_EQ(found[1].variable, nullptr);
  for (const absl::Status& status :
       {store.find(first, "w").status(), store.create(first, "new", torch::ones({2})).status(),
        store.check(first), store.remove(first, {made_handle})}) {
    EXPECT_EQ(error_code(status), ErrorCode::kAborted);
    EXPECT_THAT(describe(status), HasSubstr("a newer program of job 'ads' has taken over"));
  }
}

TEST(JobVariables, HandlesOfAnotherJobAreRejected) {
  VariableStore store;
  store.begin_job({"ads", 1}, /*fresh=*/true);
  store.begin_job({"other", 1}, /*fresh=*/true);
  const VariableScope ads("ads", 1, "default"), other("other", 1, "default");
  std::vector<uint64_t> handles;
  for (const VariableScope& scope : {other, ads}) {
    throw_if_error(store.create(scope, "w", torch::ones({2})).status());
    handles.push_back(value_or_throw(store.lookup(scope, "w"))->handle);
  }
  for (const VariableScope& scope : {ads, other, VariableScope("default")}) {
    for (const absl::Status& status :
         {store.remove(scope, handles), store.lookup(scope, handles).status()}) {
      EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
    }
  }
  EXPECT_EQ(store.list().size(), 2u) << "nothing was deleted";
  handles.pop_back();
  EXPECT_EQ(value_or_throw(store.lookup(other, handles)).size(), 1u);
  const VariableScope older("other", 0, "default");
  EXPECT_EQ(error_code(store.lookup(older, handles).status()), ErrorCode::kAborted);
  throw_if_error(store.remove(other, handles));
  EXPECT_EQ(error_code(store.lookup(other, handles).status()), ErrorCode::kNotFound);
}

TEST(JobVariables, AFreshGenerationAndTheEndOfAJobFreeVariables) {
  VariableStore store;
  store.begin_job({"ads", 1}, /*fresh=*/true);
  const VariableScope first("ads", 1, "default");
  throw_if_error(store.create(first, "w", torch::ones({8})).status());
  throw_if_error(store.create("default", "w", torch::ones({8})).status());
  const uint64_t handle = value_or_throw(store.lookup(first, "w"))->handle;
  EXPECT_EQ(store.bytes(), 64u);
  store.begin_job({"ads", 2}, /*fresh=*/true);
  EXPECT_EQ(store.bytes(), 32u);
  EXPECT_FALSE(store.lookup(std::vector<uint64_t>{handle}).ok());
  const VariableScope second("ads", 2, "default");
  throw_if_error(store.create(second, "w", torch::ones({8})).status());
  ASSERT_EQ(store.list_by_job().size(), 2u);
  EXPECT_EQ(store.list_by_job()[1].job, "ads");
  store.drop_job("ads");
  EXPECT_EQ(store.bytes(), 32u);
  EXPECT_EQ(error_code(store.find(second, "w").status()), ErrorCode::kAborted);
  EXPECT_TRUE(store.find("default", "w").ok());
}

}  // namespace
}  // namespace trireme
