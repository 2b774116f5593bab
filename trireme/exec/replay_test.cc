#include "trireme/exec/replay.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/status.h"
#include "trireme/exec/operator_trace.h"
#include "trireme/graph/small_graph.h"

namespace trireme::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Replay, ComputesTheGraphsOutputs) {
  const auto plan = value_or_throw(compile_copy(small_graph()));
  const auto outputs = value_or_throw(replay(*plan, {at::full({2}, -5.0f)}, {}, {}));
  EXPECT_TRUE(outputs[0].equal(at::full({2}, 1.0f)));
}

TEST(Replay, NamesTheOperatorThatFails) {
  const auto plan = value_or_throw(compile_copy(small_graph()));
  const auto failed = replay(*plan, {at::zeros({3})}, {}, {});
  EXPECT_THAT(describe(failed.status()), AllOf(HasSubstr("function 'small'"),
                                               HasSubstr("operator 'aten::add.Tensor' (node 0)"),
                                               HasSubstr("size of tensor a (3)")));
  EXPECT_THAT(describe(replay(*plan, {}, {}, {}).status()), HasSubstr("takes 1 inputs, but got 0"));
}

TEST(Replay, IsCancelledBeforeTheNextOperator) {
  const auto plan = value_or_throw(compile_copy(small_graph()));
  std::stop_source source;
  source.request_stop();
  ReplayOptions options;
  options.stop = source.get_token();
  EXPECT_EQ(error_code(replay(*plan, {at::zeros({2})}, {}, {}, options).status()),
            ErrorCode::kCancelled);
}

TEST(Replay, WritesATraceOfAllOperators) {
  const auto plan = value_or_throw(compile_copy(small_graph()));
  OperatorTrace trace;
  ReplayOptions options;
  options.trace = &trace;
  ASSERT_TRUE(replay(*plan, {at::zeros({2})}, {}, {}, options).ok());
  EXPECT_THAT(trace.chrome_json(),
              AllOf(HasSubstr("\"traceEvents\":["), HasSubstr("\"name\":\"aten::add.Tensor\""),
                    HasSubstr("\"args\":{\"node\":1}")));
}

}  // namespace
}  // namespace trireme::internal
