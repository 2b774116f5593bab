#include "trireme/ps/resumed_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kOld = 3, kCurrent = 4, kMissing = 0;
const JobKey kResumed{"ads", kCurrent};

TEST(ResumedVariables, FindsAllOrNone) {
  EXPECT_TRUE(check_not_mixed(kResumed, {}, {kOld, kOld}).ok());
  EXPECT_TRUE(check_not_mixed(kResumed, {{"a", 0, kOld}, {"b", 1, 1}}, {1, 1}).ok());
  EXPECT_TRUE(
      check_not_mixed(kResumed, {{"a", 0, kMissing}, {"b", 1, kMissing}}, {kOld, kOld}).ok())
      << "variables that are new in this program";
  EXPECT_TRUE(
      check_not_mixed(kResumed, {{"a", 0, kMissing}, {"b", 1, kMissing}}, {kCurrent, kCurrent})
          .ok())
      << "the job had no variables any more";
}

TEST(ResumedVariables, VariablesOfThisGenerationCountAsNew) {
  EXPECT_TRUE(
      check_not_mixed(kResumed, {{"a", 0, kCurrent}, {"b", 1, kMissing}}, {kOld, kOld}).ok())
      << "another program of the job is creating them at the same time";
  EXPECT_FALSE(check_not_mixed(kResumed, {{"a", 0, kCurrent}, {"b", 1, kOld}}, {kOld, kOld}).ok());
}

TEST(ResumedVariables, RejectsAMixAndNamesBothKinds) {
  std::vector<ResumedShard> shards;
  for (int i = 0; i < 7; ++i) shards.push_back({absl::StrCat("found", i), 0, kOld});
  shards.push_back({"table/part_1", 1, kMissing});
  const absl::Status status = check_not_mixed(kResumed, shards, {kOld, kCurrent});
  EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(
      describe(status),
      AllOf(HasSubstr("job 'ads': cannot resume it"), HasSubstr("'found0' on /job:ps/task:0"),
            HasSubstr("and 2 more"), Not(HasSubstr("found5")),
            HasSubstr("Missing: 'table/part_1' on /job:ps/task:1."), HasSubstr("without resume")));
}

TEST(ResumedVariables, NoticesALostServerIfAllVariablesWereOnIt) {
  EXPECT_TRUE(check_not_mixed(kResumed, {{"a", 0, kMissing}}, {kOld, kCurrent}).ok());
  const absl::Status status = check_not_mixed(kResumed, {{"b", 1, kMissing}}, {kOld, kCurrent});
  EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(describe(status), HasSubstr("'b' on /job:ps/task:1"));
}

}  // namespace
}  // namespace trireme::internal
