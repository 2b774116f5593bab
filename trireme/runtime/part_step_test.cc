#include "trireme/runtime/part_step.h"

#include <gtest/gtest.h>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// A part of a step that is over before it is started. Needs no graph, since no operator runs.
class PartStepTest : public testing::Test {
 protected:
  std::vector<absl::Status> start() {
    std::vector<absl::Status> answers;
    InlineExecutor executor;
    step_->start(
        {.deadline = after(std::chrono::seconds(10))}, {}, executor,
        [&](const absl::StatusOr<PartResult>& result) { answers.push_back(result.status()); });
    return answers;
  }

  static std::shared_ptr<RegisteredPart> make_part() {
    auto part = std::make_shared<RegisteredPart>();
    part->task = "/job:worker/task:1";
    return part;
  }

  Metrics metrics_;
  StepGauges gauges_{metrics_};
  const std::shared_ptr<PartStep> step_ = std::make_shared<PartStep>(make_part(), 3, gauges_);
};

TEST_F(PartStepTest, AnswersTheStartOfAStepThatWasAborted) {
  step_->abort(make_status(ErrorCode::kCancelled, "the graph was dropped"));
  const std::vector<absl::Status> answers = start();
  ASSERT_EQ(answers.size(), 1u) << "the caller waits until its deadline";
  EXPECT_EQ(error_code(answers[0]), ErrorCode::kCancelled);
  EXPECT_EQ(error_origin(answers[0]).task, "/job:worker/task:1");
}

TEST_F(PartStepTest, IsClaimedOnce) {
  EXPECT_TRUE(step_->claim());
  EXPECT_FALSE(step_->claim());
}

}  // namespace
}  // namespace trireme::internal
