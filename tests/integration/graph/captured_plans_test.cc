// A plan derives from the operators which values share memory, whatever a graph claims. A replay
// frees values at their last use and names the operator that makes a NaN.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/status.h"
#include "trireme/exec/replay.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/graph/graph.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {
namespace {

using testing::HasSubstr;

// Compiles the graph with field 4 set in each value. In an older format that field named the value
// whose memory it shares; here each value claims to have its own.
std::shared_ptr<const Plan> compile_with_claims(const GraphData& data) {
  auto claimed = std::make_shared<GraphData>(data);
  for (int i = 0; i < claimed->def.values_size(); ++i) {
    proto::Value* value = claimed->def.mutable_values(i);
    value->GetReflection()->MutableUnknownFields(value)->AddVarint(4, i);
  }
  std::string bytes = claimed->def.SerializeAsString();
  EXPECT_TRUE(claimed->def.ParseFromString(bytes));
  return value_or_throw(compile(claimed));
}

TEST(CapturedPlan, DerivesSharedMemoryFromOperatorsAndNotFromTheGraph) {
  using Body = std::function<at::Tensor(const at::Tensor&)>;
  for (const Body& view :
       std::vector<Body>{[](const at::Tensor& t) {
                           return at::_unsafe_view(t, {2, 2});
                         },
                         [](const at::Tensor& t) { return at::unsafe_split(t, 2)[0]; },
                         [](const at::Tensor& t) {
                           return at::unsafe_split_with_sizes(t, {3, 1})[1];
                         }}) {
    const Variable variable("shared", at::zeros({4}), {.trainable = false});
    const auto captured = function("write", [&] {
                            const at::NoGradGuard no_gradients;
                            at::Tensor part = view(variable.read());
                            return part.add_(1).sum();
                          }).graph();
    const auto plan = compile_with_claims(*Access<Graph>::plan(captured)->graph);
    EXPECT_TRUE(plan->variable_written[0]);
    for (const NodePlan& node : plan->nodes) {
      if (node.op.operator_name().name != "aten::add_") continue;
      EXPECT_THAT(node.variables, testing::ElementsAre(testing::Pair(0u, true)));
    }
    // A value that is sent must be copied if an operator writes to its memory later.
    const auto sending = function("send", [&](const at::Tensor& x) {
                           const at::NoGradGuard no_gradients;
                           at::Tensor base = x * 2;
                           const at::Tensor part = view(base) * 1;
                           base.add_(1);
                           return part + base.sum();
                         }).graph(at::ones({4}));
    GraphData data = *Access<Graph>::plan(sending)->graph;
    proto::Send* send = data.def.add_sends();
    send->set_to("/job:worker/task:1");
    send->set_value(data.def.nodes(1).results(0).has_values()
                        ? data.def.nodes(1).results(0).values().ids(0)
                        : data.def.nodes(1).results(0).value());
    if (send->value() < 0) send->set_value(data.def.nodes(1).results(0).values().ids(1));
    send->set_after(2);
    EXPECT_TRUE(compile_with_claims(data)->sends[0].copied);
  }
}

TEST(CapturedPlan, NamesTheFirstOperatorThatMakesANan) {
  auto root = function("root", [](const at::Tensor& x) { return x.add(1).sqrt().mul(2).sum(); });
  const Graph graph = root.graph(at::ones({2}));
  ReplayOptions options;
  options.check_numerics = true;
  const auto failed = replay(*Access<Graph>::plan(graph), {at::full({2}, -3.0f)}, {}, {}, options);
  EXPECT_THAT(describe(failed.status()),
              HasSubstr("operator 'aten::sqrt' (node 1) failed: it produced a NaN"));
}

TEST(CapturedPlan, FreesValuesAtTheirLastUse) {
  auto chain = function("chain", [](const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < 10; ++i) y = y.add(1);
    return y.sum();
  });
  const Graph graph = chain.graph(at::zeros({8}));
  // Each intermediate value has one use, so the operator that uses it takes it over.
  for (const NodePlan& node : Access<Graph>::plan(graph)->nodes)
    EXPECT_TRUE(node.arguments[0].last_use);
}

}  // namespace
}  // namespace trireme::internal
