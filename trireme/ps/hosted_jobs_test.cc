#include "trireme/ps/hosted_jobs.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "trireme/base/status.h"
#include "trireme/testing/manual_clock.h"

namespace trireme::internal {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr auto kHostedLease = seconds(3);
constexpr auto kKept = minutes(5);

class HostedJobsTest : public testing::Test {
 protected:
  HostedJobsTest() {
    begin_member(1);
    variable_ = value_or_throw(store_.make({"ads", 1, "default"}, "w", {at::kFloat, {2}},
                                           [](at::Tensor& contents) { contents.zero_(); }))
                    .variable;
  }
  // Begins generation 1 on behalf of a member, which has one writer of the same number.
  void begin_member(uint64_t member) {
    const Time until = clock_.now() + kHostedLease;
    throw_if_error(jobs_->begin({.job = {"ads", 1}, .member = member, .until = until}).status());
    throw_if_error(jobs_->begin_writer(member, {"ads", 1, member}, until));
  }
  absl::Status renew(uint64_t member) {
    return jobs_->renew({"ads", 1}, member, clock_.now() + kHostedLease, clock_.now(),
                        {{member, 0}});
  }
  absl::Status push(uint64_t writer, uint64_t sequence = 1) {
    const PushId id{writer, sequence, 0};
    const auto admitted = writers_.admit(id, 0);
    if (!admitted.ok()) return admitted.status();
    return variable_
        ->apply(Update{.values = at::ones({2})}, StoredVariable::Push{*admitted, id}, std::nullopt)
        .status();
  }
  uint64_t record_bytes() { return variable_->stats().record_bytes; }

  ManualClock clock_;
  VariableStore store_;
  Writers writers_{clock_};
  InlineExecutor executor_;
  const std::shared_ptr<HostedJobs> jobs_ = std::make_shared<HostedJobs>(
      store_, writers_, executor_, JobTableOptions{.clock = &clock_, .keep_after_lease = kKept});
  VariableStore::Variable variable_;
};

TEST_F(HostedJobsTest, ForgetsTheRecordsOfAMemberThatHasLeft) {
  begin_member(2);
  throw_if_error(push(2));
  EXPECT_GT(record_bytes(), 0u);
  jobs_->end({.job = {"ads", 1}, .member = 2});
  jobs_->expire();
  EXPECT_EQ(record_bytes(), 0u);
  throw_if_error(push(1));
}

TEST_F(HostedJobsTest, ForgetsTheRecordsOfAGenerationThatWasResumed) {
  throw_if_error(push(1));
  throw_if_error(jobs_
                     ->begin({.job = {"ads", 2},
                              .member = 2,
                              .until = clock_.now() + kHostedLease,
                              .resume = true})
                     .status());
  EXPECT_GT(record_bytes(), 0u);
  jobs_->expire();
  EXPECT_EQ(record_bytes(), 0u);
}

// No writer begins after the one of the killed program.
TEST_F(HostedJobsTest, FreesTheWriterOfAProgramThatWasKilled) {
  begin_member(2);
  throw_if_error(push(2));
  for (int i = 0; i < 3 * 7 * 60; ++i) {  // the first member lives on
    clock_.advance(seconds(1));
    throw_if_error(renew(1));
    jobs_->expire();
  }
  EXPECT_EQ(writers_.size(), 1u);
  EXPECT_EQ(record_bytes(), 0u);
  throw_if_error(push(1));
}

// A program whose writer is gone must not renew its lease: all its pushes would be rejected.
TEST_F(HostedJobsTest, AWriterOutlivesItsMember) {
  begin_member(2);
  for (Duration silent = {}; silent < kHostedLease + kKept; silent += seconds(1)) {
    EXPECT_EQ(writers_.size(), 2u);
    clock_.advance(seconds(1));
    throw_if_error(renew(1));
    jobs_->expire();
  }
  EXPECT_EQ(error_code(renew(2)), ErrorCode::kAborted) << "it is not a member any more";
  EXPECT_EQ(writers_.size(), 2u);
}

}  // namespace
}  // namespace trireme::internal
