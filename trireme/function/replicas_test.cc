#include "trireme/function/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/device_scope.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/capture/replica_scope.h"
#include "trireme/capture/scope.h"
#include "trireme/capture/scope_stack.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/graph/plan.h"
#include "trireme/placement/local_devices.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using internal::for_each_replica;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

Variable number(const char* name, double value, Aggregation aggregation) {
  return Variable(name, torch::tensor(value), {.aggregation = aggregation});
}

TEST(Replicas, RunInOrderAndKnowTheirIds) {
  std::vector<int> ids;
  EXPECT_FALSE(internal::in_replica());
  for_each_replica(3, [&](int replica) {
    EXPECT_EQ(replica, replica_id());
    EXPECT_TRUE(internal::in_replica());
    ids.push_back(replica);
  });
  EXPECT_THAT(ids, ElementsAre(0, 1, 2));
  EXPECT_FALSE(internal::in_replica());
  EXPECT_EQ(replica_id(), 0);
}

TEST(Replicas, AnErrorStopsTheRunAndMakesNoChange) {
  const Variable v = number("v", 1, Aggregation::kSum);
  EXPECT_THROW(for_each_replica(2,
                                [&](int replica) {
                                  v.assign(torch::tensor(5.0));
                                  if (replica == 1) throw std::runtime_error("stop");
                                }),
               std::runtime_error);
  EXPECT_FALSE(internal::in_replica());
  EXPECT_EQ(v.read().item<double>(), 1);
}

// Applies a change with value 2 in replica 0 and value 6 in replica 1 to a variable that is 10,
// eagerly and in a captured function.
class AggregationTest : public testing::TestWithParam<bool> {
 protected:
  double after(Aggregation aggregation,
               const std::function<void(const Variable&, const Tensor&)>& change) const {
    const Variable v = number("v", 10, aggregation);
    const auto body = [&](const Tensor& two) {
      for_each_replica(2, [&](int replica) { change(v, two * (1 + 2 * replica)); });
    };
    if (GetParam()) {
      function("step", body)(torch::tensor(2.0));
    } else {
      body(torch::tensor(2.0));
    }
    return v.read().item<double>();
  }
};

TEST_P(AggregationTest, CombinesTheValuesOfTheReplicas) {
  const auto assign = [](const Variable& v, const Tensor& x) { v.assign(x); };
  const auto add = [](const Variable& v, const Tensor& x) { v.assign_add(x); };
  const auto sub = [](const Variable& v, const Tensor& x) { v.assign_sub(x); };
  EXPECT_EQ(after(Aggregation::kSum, assign), 8);
  EXPECT_EQ(after(Aggregation::kSum, add), 18);
  EXPECT_EQ(after(Aggregation::kSum, sub), 2);
  EXPECT_EQ(after(Aggregation::kMean, assign), 4);
  EXPECT_EQ(after(Aggregation::kMean, add), 14);
  EXPECT_EQ(after(Aggregation::kMean, sub), 6);
  EXPECT_EQ(after(Aggregation::kOnlyFirstReplica, assign), 2);
  EXPECT_EQ(after(Aggregation::kOnlyFirstReplica, add), 12);
  EXPECT_EQ(after(Aggregation::kOnlyFirstReplica, sub), 8);
}

TEST_P(AggregationTest, RejectsAnAssignmentWithoutAggregation) {
  const Error error = error_of([&] {
    after(Aggregation::kNone, [](const Variable& v, const Tensor& x) { v.assign_add(x); });
  });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(error.origin().object, HasSubstr("variable 'v"));
  EXPECT_THAT(error.what(), HasSubstr("assign_add() in replica 0"));
  EXPECT_THAT(error.what(), HasSubstr("aggregation"));
}

TEST_P(AggregationTest, ReplicasReadOldValuesAndLaterWritesToAValueDoNotCount) {
  const double result = after(Aggregation::kSum, [](const Variable& v, const Tensor& x) {
    Tensor change = x * 1;
    v.assign_add(change);
    change.add_(100);
    v.assign_add(v.read());
  });
  EXPECT_EQ(result, 10 + 2 + 6 + 10 + 10);
}

INSTANTIATE_TEST_SUITE_P(Run, AggregationTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "captured" : "eager"; });

TEST(Replicas, MeanOfAnIntegerVariableIsAnInteger) {
  const Variable v("v", torch::tensor(int64_t{10}), {.aggregation = Aggregation::kMean});
  for_each_replica(2, [&](int replica) { v.assign_add(torch::tensor(int64_t{3 + 2 * replica})); });
  EXPECT_EQ(v.read().item<int64_t>(), 14);
}

TEST(Replicas, MustMakeTheSameChangesInTheSameOrder) {
  const Variable a = number("a", 0, Aggregation::kSum), b = number("b", 0, Aggregation::kSum);
  const Tensor one = torch::tensor(1.0);
  const auto error_for = [&](const std::function<void(int)>& body) {
    const Error error = error_of([&] { for_each_replica(3, body); });
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.what(), HasSubstr("same order"));
    return std::string(error.what());
  };
  EXPECT_THAT(error_for([&](int replica) {
                if (replica < 2) a.assign(one);
              }),
              HasSubstr("replica 2 calls nothing where replica 0 calls assign() of variable 'a"));
  EXPECT_THAT(error_for([&](int replica) {
                if (replica == 1) a.assign(one);
              }),
              HasSubstr("replica 1 calls assign() of variable 'a"));
  EXPECT_THAT(error_for([&](int replica) { (replica == 0 ? a : b).assign(one); }),
              HasSubstr("replica 1 calls assign() of variable 'b"));
  EXPECT_THAT(error_for([&](int replica) { replica == 0 ? a.assign(one) : a.assign_add(one); }),
              HasSubstr("replica 1 calls assign_add()"));
  EXPECT_EQ(a.read().item<double>(), 0);
}

TEST(Replicas, CannotBeNested) {
  EXPECT_EQ(
      error_of([] { for_each_replica(2, [](int) { for_each_replica(2, [](int) {}); }); }).code(),
      ErrorCode::kFailedPrecondition);
}

TEST(Replicas, RejectsACapturedFunctionInAReplicaOfEagerCode) {
  const Variable v = number("v", 0, Aggregation::kSum);
  const auto add = function("add", [&](const Tensor& x) { v.assign_add(x); });
  const Error error = error_of([&] { for_each_replica(2, [&](int) { add(torch::tensor(1.0)); }); });
  EXPECT_EQ(error.origin().object, "function 'add'");
  EXPECT_THAT(error.what(), HasSubstr("inside of a captured function"));
  // Inside another captured function it becomes part of that one.
  function("both",
           [&](const Tensor& x) { for_each_replica(2, [&](int) { add(x); }); })(torch::tensor(1.0));
  EXPECT_EQ(v.read().item<double>(), 2);
}

TEST(Replicas, AreIndependentBranchesOfTheGraph) {
  const auto step =
      function("step", [&, weight = Variable("w", torch::ones({4, 4}))](const Tensor& x) {
        std::vector<Tensor> sums;
        for_each_replica(2, [&](int replica) {
          sums.push_back(torch::tanh(x.narrow(0, replica, 1).matmul(weight.read())).sum());
        });
        return internal::aggregate(Aggregation::kSum, {{sums[0]}, {sums[1]}})[0];
      });
  const Graph graph = step.graph(torch::ones({2, 4}));
  const auto& def = internal::Access<Graph>::plan(graph)->graph->def;
  EXPECT_THAT(def.scopes(), testing::IsSupersetOf({"replica_0", "replica_1"}));
  std::map<uint32_t, std::string> made_in;
  for (const auto& node : def.nodes()) {
    const std::string scope = node.scope() == 0 ? "" : def.scopes(node.scope() - 1);
    for (const auto& argument : node.arguments()) {
      if (!argument.has_value() || scope.empty() || !made_in.contains(argument.value())) continue;
      EXPECT_EQ(made_in[argument.value()], scope);
    }
    for (const auto& result : node.results()) made_in[result.value()] = scope;
  }
  for (const auto& node : internal::Access<Graph>::plan(graph)->nodes) EXPECT_FALSE(node.writes);
}

TEST(Replicas, OneReplicaGivesTheSameGraphAsNone) {
  const Variable v = number("v", 0, Aggregation::kNone);
  const auto body = [&](const Tensor& x) {
    v.assign_add(x * 2);
    return v.read() + x;
  };
  const auto with = function("step", [&](const Tensor& x) {
    Tensor result;
    for_each_replica(1, [&](int) { result = body(x); });
    return result;
  });
  const auto without = function("step", body);
  EXPECT_EQ(with.graph(torch::tensor(1.0)).explain(), without.graph(torch::tensor(1.0)).explain());
}

Tensor sum_over_replicas(const Tensor& value) {
  return internal::all_reduce_replicas(Aggregation::kSum, value);
}

Tensor mean_over_replicas(const Tensor& value) {
  return internal::all_reduce_replicas(Aggregation::kMean, value);
}

// Runs bodies with all_reduce() eagerly and in a captured function, whose checks capture it three
// times.
class AllReduceTest : public testing::TestWithParam<bool> {
 protected:
  // Returns what the body returns in three replicas, whose values of x are 2, 4 and 6.
  std::vector<double> results(const std::function<Tensor(const Tensor& x)>& body) const {
    const auto run = [&](const Tensor& two) {
      std::vector<Tensor> all;
      for_each_replica(3, [&](int replica) { all.push_back(body(two * (1 + replica)).detach()); });
      return torch::stack(all);
    };
    const Tensor two = torch::tensor(2.0);
    const Tensor all = GetParam() ? function("step", run)(two) : run(two);
    return {all[0].item<double>(), all[1].item<double>(), all[2].item<double>()};
  }
};

TEST_P(AllReduceTest, ReturnsTheSumOrTheMeanInEveryReplica) {
  EXPECT_THAT(results(sum_over_replicas), ElementsAre(12, 12, 12));
  EXPECT_THAT(results(mean_over_replicas), ElementsAre(4, 4, 4));
}

TEST_P(AllReduceTest, MayBeCalledSeveralTimesWithCodeBetween) {
  EXPECT_THAT(results([](const Tensor& x) {
                const Tensor sum = sum_over_replicas(x);
                const Tensor mean = mean_over_replicas(sum * x);
                return mean + x + replica_id();
              }),
              ElementsAre(48 + 2 + 0, 48 + 4 + 1, 48 + 6 + 2));
}

TEST_P(AllReduceTest, GivesEachReplicaATensorOfItsOwn) {
  EXPECT_THAT(results([](const Tensor& x) { return sum_over_replicas(x).add_(x); }),
              ElementsAre(14, 16, 18));
}

TEST_P(AllReduceTest, PassesNoGradientOn) {
  const Variable w = number("w", 3, Aggregation::kNone);
  EXPECT_THAT(results([&](const Tensor& x) {
                const Tensor product = w.read() * x;
                const Tensor sum = sum_over_replicas(product);
                EXPECT_FALSE(sum.requires_grad());
                return torch::autograd::grad({product * sum}, {w.read()})[0];
              }),
              ElementsAre(2 * 36, 4 * 36, 6 * 36));
}

TEST_P(AllReduceTest, KeepsChangesBeforeAndAfterIt) {
  const Variable before = number("before", 0, Aggregation::kSum),
                 after = number("after", 0, Aggregation::kMean);
  EXPECT_THAT(results([&](const Tensor& x) {
                before.assign_add(x);
                const Tensor sum = sum_over_replicas(x);
                after.assign(sum * x);
                before.assign_add(sum);
                return before.read() + after.read();
              }),
              ElementsAre(0, 0, 0));
  EXPECT_EQ(before.read().item<double>(), 12 + 3 * 12);
  EXPECT_EQ(after.read().item<double>(), 12 * 4);
}

INSTANTIATE_TEST_SUITE_P(Run, AllReduceTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "captured" : "eager"; });

TEST(AllReduce, ReturnsTheValueItselfWithoutReplicas) {
  const Tensor value = torch::tensor(5.0, torch::requires_grad());
  const Tensor same = mean_over_replicas(value);
  EXPECT_TRUE(same.is_alias_of(value));
  EXPECT_FALSE(same.requires_grad());
  for_each_replica(1, [&](int) { EXPECT_EQ(sum_over_replicas(value).item<double>(), 5); });
  EXPECT_EQ(error_of([] { sum_over_replicas({}); }).code(), ErrorCode::kInvalidArgument);
}

TEST(AllReduce, CombinesOutsideOfTheReplicas) {
  const auto step = function("step", [](const Tensor& x) {
    const Scope scope("outer");
    std::vector<Tensor> results;
    for_each_replica(2, [&](int) { results.push_back(mean_over_replicas(x.exp()).neg()); });
    return results[0] + results[1];
  });
  const Graph graph = step.graph(torch::ones({2}));
  const auto& def = internal::Access<Graph>::plan(graph)->graph->def;
  std::vector<std::string> nodes;
  for (const auto& node : def.nodes()) {
    nodes.push_back(absl::StrCat(node.op(), " ", node.scope() ? def.scopes(node.scope() - 1) : "",
                                 " ", node.replica()));
  }
  EXPECT_THAT(nodes,
              ElementsAre("aten::exp outer/replica_0 1", "aten::exp outer/replica_1 2",
                          "aten::add.Tensor outer/all_reduce 0",
                          "aten::div.Scalar outer/all_reduce 0", "aten::clone outer/replica_0 1",
                          "aten::neg outer/replica_0 1", "aten::clone outer/replica_1 2",
                          "aten::neg outer/replica_1 2", "aten::add.Tensor outer 0"));
}

TEST(AllReduce, KeepsTheStateOfEachReplica) {
  const auto state = [] {
    std::vector<std::string> words = internal::scope_stack();
    words.push_back(internal::requested_device({}).device.to_string());
    words.push_back(torch::GradMode::is_enabled() ? "gradients" : "no gradients");
    words.push_back(absl::StrCat(replica_id(), internal::current_replica()));
    words.push_back(internal::current_hook() == nullptr ? "unchecked" : "checked");
    return words;
  };
  const Scope scope("outer");
  const DeviceScope cpu("/cpu:0");
  // On a machine with accelerators, a scope of the CPU is one that operators may miss.
  const char* const local = internal::accelerator_count() > 0 ? "checked" : "unchecked";
  const std::vector<std::string> outside = state();
  std::vector<std::vector<std::string>> at_start, before, after;
  std::vector<Tensor> sums;
  for_each_replica(2, [&](int replica) {
    const Tensor one = torch::ones({});
    at_start.push_back(state());
    const torch::AutoGradMode gradients(replica != 0);
    std::optional<DeviceScope> device;
    std::optional<Scope> inner;
    if (replica == 0) {
      // An operator that computes is rejected in this scope.
      device.emplace("/job:ps/task:1");
    } else {
      inner.emplace("inner");
      EXPECT_EQ((one + one).item<double>(), 2);
    }
    before.push_back(state());
    sums.push_back(sum_over_replicas(one));
    after.push_back(state());
    EXPECT_EQ(error_of([&] { one + one; }).code(),
              replica == 0 ? ErrorCode::kFailedPrecondition : ErrorCode::kOk);
  });
  EXPECT_EQ(state(), outside);
  EXPECT_EQ(before, after);
  for (const Tensor& sum : sums) EXPECT_EQ(sum.item<double>(), 2);
  EXPECT_THAT(at_start,
              ElementsAre(ElementsAre("outer", "replica_0", "/cpu:0", "gradients", "00", local),
                          ElementsAre("outer", "replica_1", "/cpu:0", "gradients", "11", local)));
  EXPECT_THAT(before, ElementsAre(ElementsAre("outer", "replica_0", "/job:ps/task:1/cpu:0",
                                              "no gradients", "00", "checked"),
                                  ElementsAre("outer", "replica_1", "inner", "/cpu:0", "gradients",
                                              "11", local)));
}

TEST(AllReduce, IsUnwoundIfAnotherReplicaThrows) {
  const Variable v = number("v", 1, Aggregation::kSum);
  std::vector<std::string> events;
  const auto body = [&](int replica) {
    const std::shared_ptr<void> object(
        nullptr, [&](void*) { events.push_back(absl::StrCat("leaves ", replica_id())); });
    const torch::NoGradGuard no_gradients;
    v.assign(torch::tensor(5.0));
    if (replica == 1) throw std::runtime_error("stop");
    sum_over_replicas(torch::ones({}));
    events.push_back("goes on");
  };
  EXPECT_THROW(for_each_replica(3, body), std::runtime_error);
  EXPECT_THAT(events, ElementsAre("leaves 1", "leaves 0"));
  EXPECT_FALSE(internal::in_replica());
  EXPECT_TRUE(torch::GradMode::is_enabled());
  EXPECT_TRUE(internal::scope_stack().empty());
  EXPECT_EQ(internal::current_replica(), -1);
  EXPECT_EQ(v.read().item<double>(), 1);
  // The same in a captured function, which can be called again.
  bool stops = true;
  const auto step = function("step", [&](const Tensor& x) {
    Tensor result;
    for_each_replica(2, [&](int replica) {
      if (stops && replica == 1) throw std::runtime_error("stop");
      result = sum_over_replicas(x);
    });
    return result;
  });
  EXPECT_ANY_THROW(step(torch::tensor(2.0)));
  stops = false;
  EXPECT_EQ(step(torch::tensor(2.0)).item<double>(), 4);
}

TEST(AllReduce, MustBeCalledByAllReplicasInTheSameWay) {
  const Variable a = number("a", 0, Aggregation::kSum);
  const Tensor one = torch::ones({});
  const auto error_for = [&](const std::function<void(int)>& body) {
    const Error error = error_of([&] { for_each_replica(3, body); });
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.what(), HasSubstr("must make the same calls in the same order"));
    return std::string(error.what());
  };
  const std::string call = "all_reduce() of a [] tensor of float32 with ReduceOp::kSum";
  EXPECT_THAT(error_for([&](int replica) {
                sum_over_replicas(one);
                if (replica < 2) sum_over_replicas(one);
              }),
              HasSubstr("replica 2 calls nothing where replica 0 calls " + call));
  const auto only_last = [&](int replica) {
    if (replica == 2) sum_over_replicas(one);
  };
  EXPECT_THAT(error_for(only_last), HasSubstr("replica 2 calls " + call +
                                              " where replica 0 calls "
                                              "nothing"));
  EXPECT_THAT(error_for([&](int replica) {
                replica == 0 ? sum_over_replicas(one) : mean_over_replicas(one);
              }),
              AllOf(HasSubstr("replica 1 calls all_reduce() of a [] tensor of float32 with "
                              "ReduceOp::kMean where replica 0 calls " +
                              call)));
  EXPECT_THAT(error_for([&](int replica) { sum_over_replicas(torch::ones({1 + replica})); }),
              HasSubstr("replica 1 calls all_reduce() of a [2] tensor of float32"));
  EXPECT_THAT(
      error_for([&](int replica) { sum_over_replicas(replica == 1 ? one.to(torch::kLong) : one); }),
      HasSubstr("replica 1 calls all_reduce() of a [] tensor of int64"));
  EXPECT_THAT(error_for([&](int replica) {
                if (replica == 1) a.assign(one);
                sum_over_replicas(one);
                if (replica != 1) a.assign(one);
              }),
              AllOf(HasSubstr("replica 1 calls assign() of variable 'a"),
                    HasSubstr("where replica 0 calls " + call)));
  // The error does not get lost if the body catches it.
  error_for([&](int replica) {
    try {
      replica == 0 ? sum_over_replicas(one) : mean_over_replicas(one);
    } catch (const Error&) {
    }
  });
  EXPECT_EQ(a.read().item<double>(), 0);
}

TEST(AllReduce, IsRejectedInABackwardPass) {
  const Error error = error_of([] {
    for_each_replica(2, [](int) {
      const Tensor x = torch::ones({}, torch::requires_grad());
      x.register_hook([](const Tensor& gradient) { return sum_over_replicas(gradient); });
      (x * 2).backward();
    });
  });
  EXPECT_THAT(error.what(), HasSubstr("call it after backward()"));
}

TEST(Replicas, WithoutAllReduceGiveTheGraphOfOneBodyAfterTheOther) {
  const Variable w = number("w", 2, Aggregation::kNone);
  const auto body = [&](const Tensor& x, int replica) {
    const Scope scope("loss");
    const Tensor loss = (w.read() * x + replica).square().sum();
    return torch::autograd::grad({loss}, {w.read()})[0];
  };
  const auto with = function("step", [&](const Tensor& x) {
    std::vector<Tensor> all;
    for_each_replica(2, [&](int replica) { all.push_back(body(x, replica)); });
    return all[0] + all[1];
  });
  const auto by_hand = function("step", [&](const Tensor& x) {
    std::vector<Tensor> all;
    for (int replica = 0; replica < 2; ++replica) {
      const internal::ReplicaScope in(replica);
      const Scope scope(absl::StrCat("replica_", replica));
      all.push_back(body(x, replica));
    }
    return all[0] + all[1];
  });
  const Graph first = with.graph(torch::ones({3})), second = by_hand.graph(torch::ones({3}));
  EXPECT_EQ(internal::Access<Graph>::plan(first)->graph->def.ShortDebugString(),
            internal::Access<Graph>::plan(second)->graph->def.ShortDebugString());
}

}  // namespace
}  // namespace trireme
