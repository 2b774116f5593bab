#include "trireme/runtime/worker.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/graph/small_graph.h"
#include "trireme/runtime/variable_host.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;

constexpr uint32_t kReceivedEdge = 4;

// Returns the graph y = relu(x + 6), where another task sends x.
std::shared_ptr<const GraphData> graph_that_receives() {
  auto data = std::make_shared<GraphData>(small_graph());
  proto::GraphDef& def = data->def;
  def.set_inputs(0);
  def.mutable_values(0)->set_source(proto::Value::RECEIVED);
  proto::Receive* receive = def.add_receives();
  receive->set_edge(kReceivedEdge);
  receive->set_from("/job:worker/task:1");
  return data;
}

// Notes the devices of variables, and keeps none.
class DeviceNotes final : public VariableHost {
 public:
  using Found = absl::StatusOr<std::shared_ptr<HostedVariable>>;

  Found find(const VariableScope&, const std::string&) override { return absl::NotFoundError(""); }
  Found create(const VariableScope&, const std::string& name, const at::Tensor&,
               c10::Device device) override {
    noted += absl::StrCat(name, " on ", device.str(), "; ");
    return nullptr;
  }
  absl::Status check(const VariableScope&) const override { return absl::OkStatus(); }
  void drop_container(const VariableScope&) override {}

  std::string noted;
};

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    context_.task = {"worker", 0};
    Worker::NewPart part;
    part.session = 1;
    part.registration = kStep.registration;
    part.lease = seconds(60);
    part.master = {"worker", 1};
    part.graph = graph_that_receives();
    throw_if_error(worker_->register_part(part));
  }
  ~WorkerTest() override { worker_->stop(); }

  // Asks the worker to run the step. The result is set when the worker answers.
  std::shared_ptr<const std::optional<absl::StatusOr<PartResult>>> run() {
    auto result = std::make_shared<std::optional<absl::StatusOr<PartResult>>>();
    worker_->run_part(kStep, 1, {.deadline = after(seconds(60))},
                      [result](absl::StatusOr<PartResult> answer) { *result = std::move(answer); });
    return result;
  }
  absl::Status deliver() {
    std::vector<CrossingValue> values;
    values.push_back({kReceivedEdge, {at::ones({2})}});
    return worker_->deliver(kStep, std::move(values), after(seconds(60)));
  }

  static constexpr StepKey kStep{7, 1};
  TaskContext context_;
  PeerChannels channels_{context_};
  InlineExecutor executor_;
  const std::shared_ptr<Worker> worker_ = std::make_shared<Worker>(context_, channels_, executor_);
};

// Masters of older versions name no devices.
TEST_F(WorkerTest, KeepsVariablesWithoutADeviceOnTheCpu) {
  const auto host = std::make_shared<DeviceNotes>();
  context_.variables = host;
  NewVariables made{.session = 1, .lease = seconds(60), .names = {"a"}, .initial = {at::ones({2})}};
  EXPECT_EQ(worker_->make_variables(made), absl::OkStatus());
  EXPECT_EQ(host->noted, "a on cpu; ");
  made.devices = {"gpu:zero"};
  const std::string error = describe(worker_->make_variables(made));
  EXPECT_NE(error.find("variable 'a'"), std::string::npos) << error;
  made.devices = {"/cpu:0", "/cpu:0"};
  EXPECT_EQ(error_code(worker_->make_variables(made)), ErrorCode::kInvalidArgument);
}

// The first request waits for its value when the second one arrives.
TEST_F(WorkerTest, ARepeatedRequestDoesNotEndTheRunningStep) {
  const auto first = run();
  EXPECT_FALSE(first->has_value());
  const auto second = run();
  ASSERT_TRUE(second->has_value());
  EXPECT_EQ(error_code((*second)->status()), ErrorCode::kAborted);
  EXPECT_FALSE(first->has_value());
  throw_if_error(deliver());
  ASSERT_TRUE(first->has_value()) << "the value was dropped";
  const PartResult result = value_or_throw(**first);
  ASSERT_EQ(result.outputs.size(), 1u);
  EXPECT_TRUE(result.outputs[0].equal(at::full({2}, 7.0f)));
}

TEST_F(WorkerTest, ARequestForAStepThatHasEndedIsRejected) {
  throw_if_error(deliver());
  const auto first = run();
  ASSERT_TRUE(first->has_value());
  EXPECT_TRUE((*first)->ok());
  const auto second = run();
  ASSERT_TRUE(second->has_value());
  EXPECT_EQ(error_code((*second)->status()), ErrorCode::kAborted);
}

}  // namespace
}  // namespace trireme::internal
