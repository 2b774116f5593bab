#include "trireme/collective/gather_loop.h"

#include <gtest/gtest.h>

#include <string>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// A group may end with an error that would be worth another attempt if a call to rank 0 had failed
// with it. Rank 0 makes no call.
TEST(GatherLoop, RankZeroReturnsTheErrorThatEndsTheRound) {
  for (const ErrorCode code :
       {ErrorCode::kTaskUnreachable, ErrorCode::kDeadlineExceeded, ErrorCode::kUnavailable}) {
    const absl::Status cause = make_status(code, "rank 1 was lost");
    const auto answer =
        gather_all({.purpose = "to exchange 'key'",
                    .group = "test",
                    .key = "key",
                    .entry = {.rank = 0, .size = 2, .ticket = 1, .bytes = "a"},
                    .task = "/job:worker/task:0",
                    .enter = [&](GatherEntry, const GatherTable::Done& done) { done(cause); },
                    .withdraw = [] {},
                    .name_of = [](int rank) { return std::to_string(rank); },
                    .note = [](const std::string&) {},
                    .deadline = Clock::real().now()});
    EXPECT_EQ(error_code(answer.status()), code);
    EXPECT_EQ(answer.status().message(), "rank 1 was lost");
  }
}

}  // namespace
}  // namespace trireme::internal
