// A client program that is killed, frozen or ended and then started again on the same servers never
// finds a mix of old and new values: it begins afresh, or continues if it asks for that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fault/client_process.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using Counts = std::vector<int64_t>;

class ClientRestart : public testing::Test {
 protected:
  // A lease that is shorter than usual, because a program that follows a killed one waits for it.
  ClientProcessOptions options(bool resume, int64_t closures = 100) const {
    return {.job = "ads", .resume = resume, .lease = seconds(1), .closures = closures};
  }

  // Runs a program to its end, and checks that it has found `found` and added its own updates.
  void expect_run(const ClientProcessOptions& program, const Counts& found) {
    ClientProcess client(cluster_.spec(), program);
    EXPECT_EQ(client.begin(), found);
    Counts expected = found;
    for (int64_t& count : expected) count += program.closures;
    EXPECT_EQ(client.end(), expected);
  }

  // The ledger of a program that was killed.
  struct Killed {
    int64_t sent = 0, done = 0;
  };
  // Starts a program with closures in flight, and kills it after some of them are done.
  Killed kill_a_busy_client() {
    ClientProcess client(cluster_.spec(), options(false, 0));
    EXPECT_EQ(client.begin(), (Counts{0, 0}));
    EXPECT_TRUE(wait_until([&] { return client.done() > 0; }, kLimit)) << client.text();
    client.kill();
    return {client.sent(), client.done()};
  }

  ProcessCluster cluster_{{{.workers = 1, .ps = 2}}};
};

TEST_F(ClientRestart, BeginsAfreshByDefault) {
  kill_a_busy_client();
  expect_run(options(false), {0, 0});
  // Nothing is left of a program that has ended in order either, whether or not it is resumed.
  expect_run(options(true), {0, 0});
}

TEST_F(ClientRestart, AProgramWithoutAnIdFindsNothing) {
  ClientProcessOptions nameless = options(false);
  nameless.job = "";
  expect_run(nameless, {0, 0});
  expect_run(nameless, {0, 0});
}

TEST_F(ClientRestart, ContinuesWithWhatWasApplied) {
  const Killed killed = kill_a_busy_client();
  ClientProcessOptions resumed = options(true);
  resumed.keep = true;
  Counts found;
  {
    ClientProcess client(cluster_.spec(), resumed);
    found = client.begin();
    for (const int64_t count : found) {
      EXPECT_GE(count, killed.done) << "an acknowledged update is lost";
      EXPECT_LE(count, killed.sent) << "an update was applied twice";
    }
    for (int64_t& count : found) count += resumed.closures;
    EXPECT_EQ(client.end(), found) << "an update of the killed program was applied later";
  }
  // It ended in order, but kept its variables.
  expect_run(resumed, found);
}

TEST_F(ClientRestart, RejectsAMixOfOldAndNewValues) {
  for (const int lost : {0, 1}) {
    const TaskId server{"ps", lost};
    kill_a_busy_client();
    cluster_.restart(server);
    // The error does not change what the next program finds.
    for (int attempt = 0; attempt < 2; ++attempt) {
      ClientProcess client(cluster_.spec(), options(true));
      const std::string kept = TaskId{"ps", 1 - lost}.to_string();
      EXPECT_THAT(client.error(),
                  AllOf(StartsWith("FAILED_PRECONDITION"),
                        HasSubstr(absl::StrCat("program: 'table/part_", 1 - lost, "' on ", kept)),
                        HasSubstr(absl::StrCat("Missing: 'table/part_", lost, "' on ",
                                               server.to_string()))));
    }
    expect_run(options(false), {0, 0});
  }
}

TEST_F(ClientRestart, BeginsAfreshIfAllServersWereRestarted) {
  kill_a_busy_client();
  for (const int lost : {0, 1}) cluster_.restart({"ps", lost});
  expect_run(options(true), {0, 0});
}

TEST_F(ClientRestart, ProgramsThatRunAtTheSameTimeShareTheVariables) {
  // Nobody waits for the end of this lease, and a short one could run out on a busy machine.
  ClientProcessOptions endless = options(false, 0), brief = options(false);
  endless.lease = brief.lease = seconds(3);
  ClientProcess first(cluster_.spec(), endless);
  EXPECT_EQ(first.begin(), (Counts{0, 0}));
  EXPECT_TRUE(wait_until([&] { return first.done() > 0; }, kLimit)) << first.text();
  {
    ClientProcess second(cluster_.spec(), brief);
    EXPECT_GT(second.begin()[0], 0) << "it has not joined the first program";
    second.end();
  }
  const Counts end = first.end(/*stop=*/true);
  EXPECT_EQ(end, (Counts{first.sent() + 100, first.sent() + 100}));
}

// The program that was frozen is not dead, and its closures are in flight when it is thawed.
TEST_F(ClientRestart, AFrozenProgramIsFencedByTheOneThatTookOver) {
  for (const bool resume : {false, true}) {
    ClientProcess frozen(cluster_.spec(), options(false, 0));
    EXPECT_TRUE(wait_until([&] { return frozen.done() > 0; }, kLimit)) << frozen.text();
    frozen.freeze();
    ClientProcess next(cluster_.spec(), options(resume, 0));
    const Counts begin = next.begin();
    EXPECT_EQ(begin[0] > 0, resume);
    EXPECT_TRUE(wait_until([&] { return next.done() > 0; }, kLimit)) << next.text();
    frozen.thaw();
    EXPECT_THAT(frozen.error(), AllOf(StartsWith("ABORTED"), HasSubstr("job 'ads'")));
    const Counts end = next.end(/*stop=*/true);
    for (size_t i = 0; i < end.size(); ++i) EXPECT_EQ(end[i], begin[i] + next.sent());
  }
}

}  // namespace
}  // namespace trireme
