#include "trireme/function/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "trireme/base/error.h"
#include "trireme/function/function.h"
#include "trireme/graph/plan.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using internal::for_each_replica;
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
  EXPECT_THAT(ids, testing::ElementsAre(0, 1, 2));
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

}  // namespace
}  // namespace trireme
