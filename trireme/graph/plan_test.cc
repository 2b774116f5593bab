#include "trireme/graph/plan.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <cstring>

#include "trireme/base/status.h"
#include "trireme/graph/function.h"
#include "trireme/graph/graph.h"
#include "trireme/graph/graph_file.h"
#include "trireme/graph/operators.h"
#include "trireme/graph/random.h"
#include "trireme/graph/replay.h"
#include "trireme/graph/variable.h"

namespace trireme::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// y = relu(x + 2 * c): a graph by hand, for tests that then spoil it.
GraphData small_graph() {
  GraphData data;
  proto::GraphDef& def = data.def;
  def.set_name("small");
  def.set_format(1);
  def.set_torch_version(TORCH_VERSION);
  def.set_inputs(1);
  const auto add_value = [&](proto::Value::Source source) {
    proto::Value* value = def.add_values();
    value->set_source(source);
    value->mutable_type()->set_dtype(static_cast<int>(at::kFloat));
    value->mutable_type()->add_sizes(2);
    value->mutable_type()->add_strides(1);
  };
  add_value(proto::Value::INPUT);
  add_value(proto::Value::CONSTANT);
  add_value(proto::Value::RESULT);
  add_value(proto::Value::RESULT);
  *def.add_constants()->mutable_type() = def.values(1).type();
  data.constants.push_back(at::full({2}, 3.0f));
  proto::Node* sum = def.add_nodes();
  sum->set_op("aten::add.Tensor");
  sum->add_arguments()->set_value(0);
  sum->add_arguments()->set_value(1);
  sum->add_arguments()->set_number(2);
  sum->add_results()->set_value(2);
  proto::Node* relu = def.add_nodes();
  relu->set_op("aten::relu");
  relu->add_arguments()->set_value(2);
  relu->add_results()->set_value(3);
  def.add_outputs(3);
  return data;
}

absl::StatusOr<std::shared_ptr<const Plan>> compile_copy(const GraphData& data) {
  return compile(std::make_shared<GraphData>(data));
}

std::string refusal(const std::function<void(proto::GraphDef&)>& spoil) {
  GraphData data = small_graph();
  spoil(data.def);
  const auto plan = compile_copy(data);
  return plan.ok() ? "accepted" : describe(plan.status());
}

TEST(Plan, RunsWhatTheGraphSays) {
  const auto plan = value_or_throw(compile_copy(small_graph()));
  const auto outputs = value_or_throw(replay(*plan, {at::full({2}, -5.0f)}, {}, {}));
  EXPECT_TRUE(outputs[0].equal(at::full({2}, 1.0f)));
}

TEST(Plan, RefusesOperatorsThatAreUnknownOrNotOnTheList) {
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(1)->set_op("aten::rleu"); }),
              AllOf(HasSubstr("node 1"), HasSubstr("'aten::rleu' is not known")));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(1)->set_op("aten::from_file"); }),
              HasSubstr("'aten::from_file' may not be used"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(1)->set_op("relu"); }),
              HasSubstr("is not known"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(1)->set_op("c10d::send"); }),
              HasSubstr("graph 'small'"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(1)->set_op("aten::set_.source_Storage"); }),
              HasSubstr("may not be used"));
}

TEST(Plan, RefusesArgumentsThatTheSchemaDoesNotAllow) {
  EXPECT_THAT(
      refusal([](auto& def) { def.mutable_nodes(0)->mutable_arguments(2)->set_text("two"); }),
      AllOf(HasSubstr("aten::add.Tensor"), HasSubstr("argument 'alpha'"), HasSubstr("'two'")));
  EXPECT_THAT(
      refusal([](auto& def) { def.mutable_nodes(0)->mutable_arguments(0)->set_integer(4); }),
      HasSubstr("argument 'self' must be Tensor and is 4"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(0)->mutable_arguments()->RemoveLast(); }),
              HasSubstr("it has 2 arguments; its schema lists 3"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(0)->clear_results(); }),
              HasSubstr("0 results"));
  EXPECT_THAT(refusal([](auto& def) {
                def.mutable_nodes(1)->set_op("aten::_to_copy");
                auto* arguments = def.mutable_nodes(1)->mutable_arguments();
                arguments->Add()->set_integer(99);  // a dtype that does not exist
                for (int i = 0; i < 4; ++i) arguments->Add()->set_none(true);
                arguments->Add()->set_boolean(false);
                arguments->Add()->set_none(true);
              }),
              HasSubstr("argument"));
}

TEST(Plan, RefusesCyclesAndNumbersOutOfRange) {
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(0)->mutable_arguments(0)->set_value(3); }),
              AllOf(HasSubstr("node 0"), HasSubstr("a cycle")));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(0)->mutable_arguments(0)->set_value(70); }),
              HasSubstr("value 70 of 4"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(1)->mutable_results(0)->set_value(2); }),
              HasSubstr("was made before"));
  EXPECT_THAT(refusal([](auto& def) { def.set_outputs(0, 9); }), HasSubstr("output value 9"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_values(0)->set_index(5); }),
              HasSubstr("does not exist or is taken"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_values(1)->mutable_type()->set_dtype(500); }),
              HasSubstr("dtype 500"));
  EXPECT_THAT(refusal([](auto& def) { def.set_format(2); }), HasSubstr("format 2"));
  EXPECT_THAT(refusal([](auto& def) { def.set_inputs(4000000000u); }), HasSubstr("inputs"));
}

// The graph with a word for each value that once said whose memory it shares: its own.
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

TEST(Plan, MemoryIsSharedAsOperatorsDoAndNotAsAGraphClaims) {
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
    const auto plan = compile_with_claims(*captured.plan()->graph);
    EXPECT_TRUE(plan->variable_written[0]);
    for (const NodePlan& node : plan->nodes) {
      if (node.op.operator_name().name != "aten::add_") continue;
      EXPECT_THAT(node.variables, testing::ElementsAre(testing::Pair(0u, true)));
    }
    // A value that is sent is copied if something writes to its memory later.
    auto data = GraphData(*function("send",
                                    [&](const at::Tensor& x) {
                                      const at::NoGradGuard no_gradients;
                                      at::Tensor base = x * 2;
                                      const at::Tensor part = view(base) * 1;
                                      base.add_(1);
                                      return part + base.sum();
                                    })
                               .graph(at::ones({4}))
                               .plan()
                               ->graph);
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

TEST(Plan, OverloadsAreOnTheListOneByOne) {
  for (const char* name : {"aten::im2col", "aten::col2im", "aten::log_sigmoid_forward",
                           "aten::rrelu_with_noise", "aten::add.Tensor"}) {
    EXPECT_TRUE(find_allowed_operator(name).ok()) << name;
  }
  for (const char* name :
       {"aten::im2col.out", "aten::col2im.out", "aten::log_sigmoid_forward.output",
        "aten::rrelu_with_noise.out", "aten::sub.out", "aten::special_laguerre_polynomial_l",
        "aten::special_zeta", "aten::polygamma", "aten::as_strided_", "aten::set_.source_Tensor"}) {
    EXPECT_EQ(error_code(find_allowed_operator(name).status()), ErrorCode::kPermissionDenied)
        << name;
  }
}

TEST(Plan, RefusesVeryLongLists) {
  EXPECT_THAT(refusal([](auto& def) {
                auto* items = def.mutable_nodes(1)->add_arguments()->mutable_integers();
                def.mutable_nodes(1)->set_op("aten::view");
                for (int i = 0; i < (1 << 20) + 1; ++i) items->add_items(1);
              }),
              HasSubstr("1048577 entries"));
}

TEST(GraphFile, KeepsEverything) {
  GraphData data = small_graph();
  data.constants[0] = at::arange(4, at::kFloat).view({2, 2}).select(1, 0);  // strided
  data.def.mutable_constants(0)->mutable_type()->set_strides(0, data.constants[0].stride(0));
  const auto again = value_or_throw(decode_graph(value_or_throw(encode_graph(data))));
  EXPECT_EQ(again->def.SerializeAsString(), data.def.SerializeAsString());
  EXPECT_EQ(again->constants[0].strides(), data.constants[0].strides());
  EXPECT_TRUE(again->constants[0].equal(data.constants[0]));
}

TEST(GraphFile, RefusesWhatIsDamaged) {
  const std::string good = value_or_throw(encode_graph(small_graph()));
  EXPECT_FALSE(decode_graph("").ok());
  EXPECT_THAT(describe(decode_graph("PK\x03\x04 something else").status()),
              HasSubstr("not a graph file"));
  for (size_t length : {size_t{9}, size_t{16}, size_t{40}, good.size() - 1}) {
    EXPECT_FALSE(decode_graph(good.substr(0, length)).ok()) << length;
  }
  std::string huge = good;
  const uint64_t billions = uint64_t{1} << 40;
  std::memcpy(huge.data() + 8, &billions, sizeof billions);
  EXPECT_THAT(describe(decode_graph(huge).status()), HasSubstr("claims 1099511627776 bytes"));
  GraphData other = small_graph();
  other.def.set_torch_version("2.4.1");
  EXPECT_EQ(error_code(decode_graph(value_or_throw(encode_graph(other))).status()),
            ErrorCode::kVersionMismatch);
  GraphData mismatched = small_graph();
  mismatched.def.mutable_constants(0)->mutable_type()->set_dtype(static_cast<int>(at::kDouble));
  EXPECT_THAT(describe(decode_graph(value_or_throw(encode_graph(mismatched))).status()),
              HasSubstr("constant 0 is not what the graph says"));
}

TEST(Replay, NamesTheOperatorThatFails) {
  const auto plan = value_or_throw(compile_copy(small_graph()));
  const auto failed = replay(*plan, {at::zeros({3})}, {}, {});
  EXPECT_THAT(describe(failed.status()),
              AllOf(HasSubstr("graph 'small'"), HasSubstr("operator 'aten::add.Tensor' (node 0)"),
                    HasSubstr("size of tensor a (3)")));
  EXPECT_THAT(describe(replay(*plan, {}, {}, {}).status()), HasSubstr("takes 1 inputs and got 0"));
}

TEST(Replay, StopsBeforeTheNextOperator) {
  const auto plan = value_or_throw(compile_copy(small_graph()));
  std::stop_source source;
  source.request_stop();
  ReplayOptions options;
  options.stop = source.get_token();
  EXPECT_EQ(error_code(replay(*plan, {at::zeros({2})}, {}, {}, options).status()),
            ErrorCode::kCancelled);
}

TEST(Replay, NamesTheFirstOperatorThatMakesANan) {
  auto root = function("root", [](const at::Tensor& x) { return x.add(1).sqrt().mul(2).sum(); });
  const Graph graph = root.graph(at::ones({2}));
  ReplayOptions options;
  options.check_numerics = true;
  const auto failed = replay(*graph.plan(), {at::full({2}, -3.0f)}, {}, {}, options);
  EXPECT_THAT(describe(failed.status()),
              HasSubstr("operator 'aten::sqrt' (node 1) failed: it made a NaN"));
}

TEST(Replay, FreesValuesAtTheirLastUse) {
  auto chain = function("chain", [](const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < 10; ++i) y = y.add(1);
    return y.sum();
  });
  const Graph graph = chain.graph(at::zeros({8}));
  // Each intermediate is taken by the operator that uses it, which is the only one.
  for (const NodePlan& node : graph.plan()->nodes) EXPECT_TRUE(node.arguments[0].last_use);
}

TEST(Replay, TracesOperators) {
  const auto plan = value_or_throw(compile_copy(small_graph()));
  OperatorTrace trace;
  ReplayOptions options;
  options.trace = &trace;
  ASSERT_TRUE(replay(*plan, {at::zeros({2})}, {}, {}, options).ok());
  EXPECT_THAT(trace.chrome_json(),
              AllOf(HasSubstr("\"traceEvents\":["), HasSubstr("\"name\":\"aten::add.Tensor\""),
                    HasSubstr("\"args\":{\"node\":1}")));
}

TEST(Graph, ExplainsAndDraws) {
  const Graph graph(value_or_throw(compile_copy(small_graph())));
  EXPECT_THAT(graph.explain(),
              AllOf(HasSubstr("graph 'small': 2 operators, 1 inputs, 0 variables, 1 constants"),
                    HasSubstr("%2 Float[2] = aten::add.Tensor(input 0, constant 0, 2)"),
                    HasSubstr("on the session's master task: no scope names a device"),
                    HasSubstr("gives %3")));
  EXPECT_THAT(graph.dot(), AllOf(HasSubstr("digraph \"small\""), HasSubstr("n0 -> n1")));
}

}  // namespace
}  // namespace trireme::internal
