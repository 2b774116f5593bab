#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/executor.h"
#include "trireme/base/file_limit.h"
#include "trireme/base/gate.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/rate_limit.h"
#include "trireme/base/status.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Status, KeepsItsOwnCodeAndOriginAcrossTheWire) {
  const absl::Status status =
      make_status(ErrorCode::kIncarnationChanged, "restarted", {"/job:ps/task:1", "variable 'w'"});
  const absl::Status received =
      status_from_wire(status.code(), std::string(status.message()), encode_error_details(status));
  EXPECT_EQ(error_code(received), ErrorCode::kIncarnationChanged);
  EXPECT_EQ(error_origin(received), (Origin{"/job:ps/task:1", "variable 'w'"}));
  EXPECT_EQ(received.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(to_status(to_error(received)), status);
}

TEST(Status, IgnoresDetailsThatContradictTheCode) {
  const absl::Status claimed = make_status(ErrorCode::kVersionMismatch, "x");
  const absl::Status received =
      status_from_wire(absl::StatusCode::kNotFound, "x", encode_error_details(claimed));
  EXPECT_EQ(error_code(received), ErrorCode::kNotFound);
  EXPECT_EQ(error_code(status_from_wire(absl::StatusCode::kInternal, "x", "rubbish")),
            ErrorCode::kInternal);
}

TEST(Status, FirstOriginWins) {
  absl::Status status = with_origin(absl::NotFoundError("no such row"), {"", "variable 'w'"});
  status = with_origin(status, {"/job:ps/task:0", "session 7"});
  EXPECT_EQ(error_origin(status), (Origin{"/job:ps/task:0", "variable 'w'"}));
  EXPECT_EQ(describe(status), "/job:ps/task:0: variable 'w': no such row");
  EXPECT_TRUE(with_origin(absl::OkStatus(), {"a", "b"}).ok());
}

TEST(Status, TryCallTurnsExceptionsIntoStatus) {
  EXPECT_EQ(*try_call([] { return 7; }), 7);
  EXPECT_EQ(error_code(try_call([] { throw Error(ErrorCode::kOutOfRange, "index 9"); })),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(error_code(try_call([]() -> int { throw std::runtime_error("boom"); }).status()),
            ErrorCode::kInternal);
}

TEST(Status, ValueOrThrowThrowsAnErrorWithCodeAndOrigin) {
  try {
    value_or_throw(
        absl::StatusOr<int>(make_status(ErrorCode::kNotFound, "gone", {"/job:ps/task:0", ""})));
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_STREQ(error.what(), "/job:ps/task:0: gone");
  }
}

TEST(Gate, CloseWaitsForHeldPassesAndRefusesNewOnes) {
  Gate gate;
  Gate::Pass pass = gate.enter();
  ASSERT_TRUE(pass);
  EXPECT_FALSE(gate.close(after(milliseconds(1)))) << "a pass was still held";
  EXPECT_FALSE(gate.enter());
  std::thread leaver([&] { Gate::Pass leaves = std::move(pass); });
  EXPECT_TRUE(gate.close(after(seconds(10))));
  leaver.join();
  EXPECT_EQ(gate.inside(), 0);
}

TEST(ThreadPool, DestructorRunsAllSubmittedWork) {
  std::atomic<int> ran = 0;
  {
    ThreadPool pool("test", 3);
    for (int i = 0; i < 1000; ++i) pool.submit([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(CondVar, WaitUntilReturnsFalseAfterTheDeadline) {
  Mutex mutex;
  CondVar condition;
  MutexLock lock(mutex);
  const Time deadline = after(milliseconds(5));
  while (condition.wait_until(mutex, deadline)) {
  }
  EXPECT_GE(Clock::real().now(), deadline);
}

TEST(Ids, AreNeverZeroAndDiffer) {
  const uint64_t a = new_incarnation(), b = new_incarnation();
  EXPECT_NE(a, 0u);
  EXPECT_NE(a, b);
  EXPECT_EQ(format_incarnation(0xabc), "0000000000000abc");
}

TEST(Clock, FormatsDurationsForPeople) {
  EXPECT_EQ(format_duration(milliseconds(320)), "320ms");
  EXPECT_EQ(format_duration(milliseconds(1500)), "1.5s");
  EXPECT_EQ(format_duration(seconds(125)), "2m 5s");
  EXPECT_EQ(format_duration(seconds(3660)), "1h 1m");
  EXPECT_EQ(format_duration(seconds(90000)), "1d 1h");
}

TEST(Logging, RejectsAnUnknownLevelAndListsTheValidOnes) {
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarning);
  try {
    parse_log_level("loud");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "unknown log level 'loud'; use debug, info, warning, error or off");
  }
}

class SetClock final : public Clock {
 public:
  Time now() const override { return time; }
  Time time = Time() + std::chrono::hours(1);
};

TEST(RateLimit, ReturnsTheNumberOfSuppressedEvents) {
  SetClock clock;
  RateLimit limit(2, seconds(10), clock);
  EXPECT_EQ(limit.admit(), 0);
  EXPECT_EQ(limit.admit(), 0);
  EXPECT_EQ(limit.admit(), std::nullopt);
  EXPECT_EQ(limit.admit(), std::nullopt);
  clock.time += seconds(10);
  EXPECT_EQ(limit.admit(), 2);
  EXPECT_EQ(limit.admit(), 0);
}

TEST(FileLimit, IsRaisedToTheHardLimit) {
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low = {64, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &low);
  EXPECT_EQ(raise_file_limit(), before.rlim_max);
  rlimit after = {};
  getrlimit(RLIMIT_NOFILE, &after);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace trireme
