// A graph that runs in branches on several threads gives the same bits as in captured order, frees
// the same memory and reports the same error. The tuner uses branches only where they are faster.
#include "trireme/exec/branches.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <random>
#include <set>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/exec/branch_tuner.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"

namespace trireme::internal {
namespace {

using at::Tensor;
using testing::HasSubstr;
using Tensors = std::vector<Tensor>;

constexpr double kLong = 1e-3;  // seconds of an operator that is worth another lane

std::vector<double> same_costs(const Plan& plan) {
  return std::vector<double>(plan.nodes.size(), kLong);
}

std::shared_ptr<const Plan> plan_of(const std::function<Tensors(const Tensor&)>& body,
                                    const Tensor& x) {
  return Access<Graph>::plan(function("step", body).graph(x));
}

Tensors run(const Plan& plan, const Tensors& inputs, const BranchSchedule* schedule,
            const Tensors& variables = {}, BranchTuner* tuner = nullptr) {
  ReplayOptions options;
  options.schedule = schedule;
  options.tuner = tuner;
  return value_or_throw(replay(plan, inputs, variables, make_step_generator(1, 2), options));
}

Tensors towers(const Tensor& x) {
  Tensors results;
  for (int tower = 0; tower < 4; ++tower) {
    Tensor y = x + tower;
    for (int i = 0; i < 6; ++i) y = torch::tanh(y.mm(x));
    results.push_back(y);
  }
  return {torch::cat(results), results[2]};
}

void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

TEST(Branches, TowersRunInLanesAndGiveTheSameBits) {
  const Tensor x = torch::rand({16, 16});
  const auto plan = plan_of(towers, x);
  const Tensors in_order = run(*plan, {x}, nullptr);
  for (int lanes : {1, 2, 3, 4}) {
    const BranchSchedule schedule = schedule_branches(*plan, same_costs(*plan), lanes);
    for (const auto& lane : schedule.lanes) EXPECT_GE(lane.size(), 6u);
    EXPECT_LE(schedule.seconds, schedule.serial_seconds / lanes + 10 * kLong);
    for (int i = 0; i < 20; ++i) expect_equal(run(*plan, {x}, &schedule), in_order);
  }
}

TEST(Branches, AChainStaysInOneLane) {
  const auto plan =
      plan_of([](const Tensor& x) { return Tensors{(x + 1).relu().exp()}; }, torch::rand({4}));
  const BranchSchedule schedule = schedule_branches(*plan, same_costs(*plan), 2);
  EXPECT_EQ(schedule.lanes[0].size(), plan->nodes.size());
  EXPECT_TRUE(schedule.lanes[1].empty());
}

TEST(Branches, TinyOperatorsStayInOneLane) {
  const auto plan = plan_of(towers, torch::rand({4, 4}));
  const std::vector<double> costs(plan->nodes.size(), 1e-7);
  EXPECT_TRUE(schedule_branches(*plan, costs, 2).lanes[1].empty());
}

TEST(Branches, AWriteInPlaceIsAFence) {
  const Tensor x = torch::rand({8});
  const auto plan = plan_of(
      [](const Tensor& x) {
        Tensor a = x.clone(), view = a.view({2, 4}), b = x.exp();
        Tensor before = view.sum();
        a.add_(1);
        return Tensors{before, view.sum(), b.sin()};
      },
      x);
  const BranchSchedule schedule = schedule_branches(*plan, same_costs(*plan), 2);
  const auto fence =
      std::ranges::find_if(plan->nodes, [](const auto& node) { return node.writes; });
  ASSERT_NE(fence, plan->nodes.end());
  const uint32_t at = fence - plan->nodes.begin();
  size_t earlier_elsewhere = 0, waited = 0;
  for (const BranchStep& step : schedule.lanes[1]) earlier_elsewhere += step.node < at;
  for (const BranchStep& step : schedule.lanes[0]) {
    for (const auto& [lane, count] : step.waits) {
      if (step.node <= at) waited = std::max<size_t>(waited, count);
    }
  }
  EXPECT_EQ(waited, earlier_elsewhere);
  expect_equal(run(*plan, {x}, &schedule), run(*plan, {x}, nullptr));
}

// Branches free every value that a run in captured order frees at its last use.
TEST(Branches, FreeTheSameValuesAsTheCapturedOrder) {
  const auto plan = plan_of(towers, torch::rand({4, 4}));
  std::set<uint32_t> serially, in_branches;
  for (const NodePlan& node : plan->nodes) {
    serially.insert(node.free_after.begin(), node.free_after.end());
    for (const ArgumentPlan& argument : node.arguments) {
      if (argument.last_use) serially.insert(argument.value);
    }
  }
  const BranchSchedule schedule = schedule_branches(*plan, same_costs(*plan), 3);
  std::vector<uint32_t> releases(schedule.release_count.size());
  for (const auto& lane : schedule.lanes) {
    for (const BranchStep& step : lane) {
      in_branches.insert(step.frees.begin(), step.frees.end());
      in_branches.insert(step.releases.begin(), step.releases.end());
      for (uint32_t value : step.releases) ++releases[value];
    }
  }
  EXPECT_EQ(in_branches, serially);
  EXPECT_EQ(releases, schedule.release_count);
}

// Runs random programs of operators, writes, views and random numbers with random schedules.
TEST(Branches, AnyScheduleGivesTheSameBits) {
  for (int seed = 0; seed < 40; ++seed) {
    Variable state("state", torch::ones({4, 4}), {.trainable = false});
    const auto body = [seed, &state](const Tensor& x) {
      const torch::NoGradGuard no_gradients;
      std::mt19937 random(seed);
      Tensors pool = {x, x + 1};
      for (int i = 0; i < 30; ++i) {
        Tensor a = pool[random() % pool.size()], b = pool[random() % pool.size()];
        switch (random() % 12) {
          case 0:
            pool.push_back(torch::rand_like(a));
            break;
          case 1:
            pool.push_back(torch::dropout(a, 0.5, true));
            break;
          case 2:
            pool.push_back(a.clone().add_(b));
            break;
          case 3:
            pool.push_back(a.t());
            break;
          case 4:
            state.assign_add(a * 0.01);
            break;
          case 5:
            pool.push_back(state.read() * b);
            break;
          case 6:
            pool.push_back(torch::stack({a, b}).sum(0));
            break;
          default:
            pool.push_back(torch::tanh(a.mm(b)));
        }
      }
      return Tensors{torch::stack(pool)};
    };
    const Tensor x = torch::rand({4, 4});
    const auto plan = plan_of(body, x);
    Tensors variables, others;
    for (size_t i = 0; i < plan->variable_values.size(); ++i) {
      variables.push_back(torch::ones({4, 4}));
      others.push_back(torch::ones({4, 4}));
    }
    const Tensors in_order = run(*plan, {x}, nullptr, variables);
    std::vector<double> costs = same_costs(*plan);
    std::mt19937 random(seed);
    for (double& cost : costs) cost *= random() % 10;
    const BranchSchedule schedule = schedule_branches(*plan, costs, 2 + seed % 3);
    expect_equal(run(*plan, {x}, &schedule, others), in_order);
    expect_equal(others, variables);
  }
}

TEST(Branches, ReportTheFirstErrorInCapturedOrder) {
  const auto plan = plan_of(
      [](const Tensor& x) {
        Tensors results;
        for (int i = 0; i < 4; ++i) results.push_back(x.mm(x) + i);
        return Tensors{torch::cat(results)};
      },
      torch::rand({3, 3}));
  const BranchSchedule schedule = schedule_branches(*plan, same_costs(*plan), 3);
  ASSERT_FALSE(schedule.lanes[1].empty());
  ReplayOptions options;
  options.schedule = &schedule;
  for (int i = 0; i < 50; ++i) {
    const auto failed = replay(*plan, {torch::rand({3, 4})}, {}, {}, options);
    EXPECT_THAT(describe(failed.status()), HasSubstr("operator 'aten::mm' (node 0) failed"));
  }
  std::stop_source stop;
  stop.request_stop();
  options.stop = stop.get_token();
  const auto cancelled = replay(*plan, {torch::rand({3, 3})}, {}, {}, options);
  EXPECT_EQ(error_code(cancelled.status()), ErrorCode::kCancelled);
  EXPECT_THAT(describe(cancelled.status()),
              HasSubstr("cancelled before operator 'aten::mm' (node 0"));
}

TEST(Branches, ConcurrentRunsShareTheHelperThreads) {
  const Tensor x = torch::rand({16, 16});
  const auto plan = plan_of(towers, x);
  const Tensors in_order = run(*plan, {x}, nullptr);
  const BranchSchedule schedule = schedule_branches(*plan, same_costs(*plan), 2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) expect_equal(run(*plan, {x}, &schedule), in_order);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BranchTuner, SettlesAndKeepsTheResult) {
  const Tensor x = torch::rand({16, 16});
  const auto plan = plan_of(towers, x);
  BranchTuner tuner;
  const Tensors first = run(*plan, {x}, nullptr, {}, &tuner);
  for (int i = 0; i < 40; ++i) expect_equal(run(*plan, {x}, nullptr, {}, &tuner), first);
  EXPECT_EQ(tuner.settled(), at::get_num_threads() > 1);
}

TEST(BranchTuner, GivesUpOnAChain) {
  const Tensor x = torch::rand({4});
  const auto plan = plan_of([](const Tensor& x) { return Tensors{(x + 1).relu().exp()}; }, x);
  BranchTuner tuner;
  for (int i = 0; i < 6; ++i) run(*plan, {x}, nullptr, {}, &tuner);
  EXPECT_FALSE(tuner.uses_branches());
}

// Measured times decide, so the test reports made-up ones.
TEST(BranchTuner, KeepsBranchesOnlyIfTheyAreFaster) {
  if (at::get_num_threads() < 2) GTEST_SKIP() << "one thread has no branches";
  const auto plan = plan_of(towers, torch::rand({4, 4}));
  for (const bool pays : {true, false}) {
    BranchTuner tuner;
    bool branched = false;
    for (int i = 0; i < 100 && !tuner.settled(); ++i) {
      const BranchTuner::Attempt attempt = tuner.next();
      branched |= attempt.schedule != nullptr;
      tuner.report(*plan, attempt, attempt.schedule ? (pays ? 1.2 : 1.9) : 2, same_costs(*plan));
    }
    EXPECT_TRUE(branched);
    EXPECT_TRUE(tuner.settled());
    EXPECT_EQ(tuner.uses_branches(), pays);
    EXPECT_EQ(tuner.next().schedule != nullptr, pays);
  }
}

TEST(BranchTuner, DropsBranchesWhenTheyBecomeSlower) {
  if (at::get_num_threads() < 2) GTEST_SKIP() << "one thread has no branches";
  const auto plan = plan_of(towers, torch::rand({4, 4}));
  BranchTuner tuner;
  int in_order = 0, runs = 0;
  const auto run_until = [&](const auto& done, double branched) {
    for (in_order = runs = 0; runs < 1000 && !done(); ++runs) {
      const BranchTuner::Attempt attempt = tuner.next();
      in_order += attempt.schedule == nullptr;
      tuner.report(*plan, attempt, attempt.schedule ? branched : 2, same_costs(*plan));
    }
  };
  run_until([&] { return tuner.settled(); }, 1.2);
  ASSERT_TRUE(tuner.uses_branches());
  run_until([] { return false; }, 1.2);
  EXPECT_TRUE(tuner.uses_branches());
  EXPECT_LE(in_order, runs / 20);  // runs that the tuner spends on measuring again
  run_until([&] { return !tuner.uses_branches(); }, 3);
  EXPECT_LT(runs, 1000);
}

}  // namespace
}  // namespace trireme::internal
