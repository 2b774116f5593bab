#include "trireme/exec/part_run.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>

#include "trireme/base/status.h"
#include "trireme/graph/small_graph.h"

namespace trireme::internal {
namespace {

// Returns the graph v.add_(x) of a variable v and an input x.
GraphData graph_that_writes() {
  GraphData data = small_graph();
  proto::GraphDef& def = data.def;
  const proto::TensorType type = def.values(0).type();
  data.constants.clear();
  def.clear_constants();
  def.clear_nodes();
  def.clear_outputs();
  def.clear_values();
  for (const auto source : {proto::Value::INPUT, proto::Value::VARIABLE}) {
    proto::Value* value = def.add_values();
    value->set_source(source);
    *value->mutable_type() = type;
  }
  proto::Variable* variable = def.add_variables();
  variable->set_name("v");
  variable->set_written(true);
  *variable->mutable_type() = type;
  proto::Node* sum = def.add_nodes();
  sum->set_op("aten::add_.Tensor");
  sum->add_arguments()->set_value(1);
  sum->add_arguments()->set_value(0);
  sum->add_arguments()->set_number(1);
  sum->add_results()->set_none(true);
  return data;
}

// The variables of a job may pass to a newer generation while a step of an older one runs.
TEST(PartRun, AWriteThatIsRejectedChangesNothing) {
  const auto plan = value_or_throw(compile_copy(graph_that_writes()));
  const at::Tensor variable = at::zeros({2});
  SharedMutex mutex;
  const auto run = [&](const absl::Status& verdict) {
    PartRunOptions options;
    options.locks = {&mutex};
    options.check_write = [verdict] { return verdict; };
    PartRun part(plan, {variable}, at::Generator(), std::move(options));
    throw_if_error(part.bind({at::ones({2})}));
    return part.advance().status();
  };
  EXPECT_EQ(run(absl::OkStatus()), absl::OkStatus());
  EXPECT_TRUE(variable.equal(at::ones({2})));
  const absl::Status rejected = make_status(ErrorCode::kAborted, "a newer program has taken over");
  EXPECT_EQ(run(rejected), rejected);
  EXPECT_TRUE(variable.equal(at::ones({2})));
}

// A server copies the contents of a variable that is being saved before they change.
TEST(PartRun, AnnouncesAWriteBeforeItAndUnderTheLock) {
  const auto plan = value_or_throw(compile_copy(graph_that_writes()));
  const at::Tensor variable = at::zeros({2});
  SharedMutex mutex;
  std::vector<uint32_t> written;
  PartRunOptions options;
  options.locks = {&mutex};
  options.before_write = [&](uint32_t index) {
    written.push_back(index);
    EXPECT_TRUE(variable.equal(at::zeros({2})));
    EXPECT_EQ(mutex.writes(), 1u);
  };
  PartRun part(plan, {variable}, at::Generator(), std::move(options));
  throw_if_error(part.bind({at::ones({2})}));
  throw_if_error(part.advance().status());
  EXPECT_EQ(written, std::vector<uint32_t>{0});
  EXPECT_TRUE(variable.equal(at::ones({2})));
}

}  // namespace
}  // namespace trireme::internal
