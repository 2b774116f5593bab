#include "trireme/graph/plan.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "trireme/base/status.h"
#include "trireme/graph/graph.h"
#include "trireme/graph/graph_file.h"
#include "trireme/graph/operators.h"
#include "trireme/graph/small_graph.h"

namespace trireme::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns the error of compiling small_graph() after `corrupt` has changed it.
std::string refusal(const std::function<void(proto::GraphDef&)>& corrupt) {
  GraphData data = small_graph();
  corrupt(data.def);
  const auto plan = compile_copy(data);
  return plan.ok() ? "accepted" : describe(plan.status());
}

TEST(Plan, RejectsOperatorsThatAreUnknownOrNotOnTheList) {
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

TEST(Plan, RejectsArgumentsThatTheSchemaDoesNotAllow) {
  EXPECT_THAT(
      refusal([](auto& def) { def.mutable_nodes(0)->mutable_arguments(2)->set_text("two"); }),
      AllOf(HasSubstr("aten::add.Tensor"), HasSubstr("argument 'alpha'"), HasSubstr("'two'")));
  EXPECT_THAT(
      refusal([](auto& def) { def.mutable_nodes(0)->mutable_arguments(0)->set_integer(4); }),
      HasSubstr("argument 'self' must be Tensor, but is 4"));
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

TEST(Plan, RejectsCyclesAndNumbersOutOfRange) {
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(0)->mutable_arguments(0)->set_value(3); }),
              AllOf(HasSubstr("node 0"), HasSubstr("a cycle")));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(0)->mutable_arguments(0)->set_value(70); }),
              HasSubstr("value 70, but the graph has 4 values"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_nodes(1)->mutable_results(0)->set_value(2); }),
              HasSubstr("was made before"));
  EXPECT_THAT(refusal([](auto& def) { def.set_outputs(0, 9); }), HasSubstr("output value 9"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_values(0)->set_index(5); }),
              HasSubstr("does not exist or already has a value"));
  EXPECT_THAT(refusal([](auto& def) { def.mutable_values(1)->mutable_type()->set_dtype(500); }),
              HasSubstr("dtype 500"));
  for (const auto set :
       {&proto::Node::set_scope, &proto::Node::set_module, &proto::Node::set_device_reason}) {
    EXPECT_THAT(refusal([&](auto& def) { (def.mutable_nodes(0)->*set)(1000); }),
                HasSubstr("names a scope, a module or a node that does not exist"));
  }
  EXPECT_THAT(refusal([](auto& def) {
                def.add_variables()->set_name("v");
                def.mutable_variables(0)->set_device_reason(1000);
              }),
              HasSubstr("variable 'v' names a scope that does not exist"));
  EXPECT_THAT(refusal([](auto& def) { def.set_format(2); }), HasSubstr("format 2"));
  EXPECT_THAT(refusal([](auto& def) { def.set_inputs(4000000000u); }), HasSubstr("inputs"));
}

TEST(Plan, AllowsAndRejectsEachOverloadSeparately) {
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

TEST(Plan, RejectsVeryLongLists) {
  EXPECT_THAT(refusal([](auto& def) {
                auto* items = def.mutable_nodes(1)->add_arguments()->mutable_integers();
                def.mutable_nodes(1)->set_op("aten::view");
                for (int i = 0; i < (1 << 20) + 1; ++i) items->add_items(1);
              }),
              HasSubstr("1048577 entries"));
}

TEST(GraphFile, DecodesToTheEncodedGraph) {
  GraphData data = small_graph();
  data.constants[0] = at::arange(4, at::kFloat).view({2, 2}).select(1, 0);  // strided
  data.def.mutable_constants(0)->mutable_type()->set_strides(0, data.constants[0].stride(0));
  const auto again = value_or_throw(decode_graph(value_or_throw(encode_graph(data))));
  EXPECT_EQ(again->def.SerializeAsString(), data.def.SerializeAsString());
  EXPECT_EQ(again->constants[0].strides(), data.constants[0].strides());
  EXPECT_TRUE(again->constants[0].equal(data.constants[0]));
}

TEST(GraphFile, RejectsDamagedAndMismatchedFiles) {
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
              HasSubstr("constant 0 does not have the dtype and number of elements"));
}

TEST(Graph, PrintsATableAndADotGraph) {
  const Graph graph = Access<Graph>::make(value_or_throw(compile_copy(small_graph())));
  EXPECT_THAT(graph.explain(),
              AllOf(HasSubstr("graph 'small': 2 operators, 1 inputs, 0 variables, 1 constants"),
                    HasSubstr("%2 Float[2] = aten::add.Tensor(input 0, constant 0, 2)"),
                    HasSubstr("on the session's master task: no scope names a device"),
                    HasSubstr("returns %3")));
  EXPECT_THAT(graph.dot(), AllOf(HasSubstr("digraph \"small\""), HasSubstr("n0 -> n1")));
}

}  // namespace
}  // namespace trireme::internal
