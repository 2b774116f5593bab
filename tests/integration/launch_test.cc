// `trireme launch` starts a whole cluster and a client program with one command, returns the exit
// code of the program, and leaves no process behind, even when it is interrupted or killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/restart_policy.h"
#include "tests/integration/commands.h"
#include "trireme/base/machine.h"
#include "trireme/rpc/temporary_folder.h"

namespace trireme {
namespace {

using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;

// The line that a server logs when it is up, from after the task to the process id.
const std::string kServes = " serves at [^ ]* \\(incarnation [0-9a-f]*, pid ([0-9]+)";

// Returns the process ids that the servers of a launch have logged.
std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  const std::regex pattern(kServes);
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    pids.push_back(std::stoi((*match)[1]));
  }
  return pids;
}

void expect_all_end(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) EXPECT_TRUE(ends(pid)) << "process " << pid << " is left over";
}

TEST(Launch, RunsAProgramAndReturnsItsExitCode) {
  const CompletedProcess done =
      run_trireme({"launch", "--workers", "2", "--ps", "1", "--devices", "cpu:2", "--", "sh", "-c",
                   "\"$0\" status --json; exit 7", trireme_binary()});
  EXPECT_EQ(done.status.code, 7) << done.stderr_text;
  const auto tasks = nlohmann::json::parse(done.stdout_text)["tasks"];  // stdout has nothing else
  ASSERT_EQ(tasks.size(), 3u);
  const std::vector<pid_t> pids = pids_in(done.stderr_text);
  EXPECT_EQ(pids.size(), 3u) << done.stderr_text;
  for (const auto& task : tasks) {
    EXPECT_EQ(task["devices"].size(), 2u);
    EXPECT_THAT(pids, testing::Contains(task["pid"].get<pid_t>()));
  }
  for (const pid_t pid : pids) EXPECT_EQ(kill(pid, 0), -1) << "process " << pid << " is left over";
  EXPECT_THAT(done.stderr_text,
              ContainsRegex("(^|\n)\\[worker/1\\] .*/job:worker/task:1 serves at"));
  EXPECT_THAT(done.stderr_text, ContainsRegex("\n\\[ps/0\\] .*/job:ps/task:0 has stopped\n"));
}

TEST(Launch, TellsTheProgramItsRole) {
  const CompletedProcess done =
      run_trireme({"launch", "--workers", "1", "--ps", "1", "--log-level", "off", "--", "sh", "-c",
                   "echo \"$TF_CONFIG\"; kill -KILL $$"});
  EXPECT_EQ(done.status.code, 137);
  const auto config = nlohmann::json::parse(done.stdout_text);
  EXPECT_EQ(config["task"], (nlohmann::json{{"type", "chief"}, {"index", 0}}));
  EXPECT_EQ(config["cluster"].size(), 2u);
  EXPECT_THAT(done.stderr_text, EndsWith("trireme: the program was killed by SIGKILL\n"));
}

TEST(Launch, SameBinaryTakesEveryRole) {
  const CompletedProcess done = run_trireme({"launch", "--workers", "2", "--ps", "1",
                                             "--same-binary", "--", built_program("role_program")});
  EXPECT_EQ(done.status.code, 5) << done.stderr_text;
  EXPECT_THAT(done.stdout_text, HasSubstr("[worker/1] serving /job:worker/task:1\n"));
  EXPECT_THAT(done.stdout_text, HasSubstr("[ps/0] serving /job:ps/task:0\n"));
  EXPECT_THAT(done.stdout_text, ContainsRegex("\nthe chief of 3 tasks\n$"));
}

TEST(Launch, ShowsTheLastLinesOfAServerThatDoesNotStart) {
  const CompletedProcess done = run_trireme({"launch", "--workers", "1", "--same-binary", "--",
                                             "sh", "-c", "echo no data here >&2; exit 3"});
  EXPECT_EQ(done.status.code, 1);
  EXPECT_THAT(done.stderr_text, HasSubstr("[worker/0] no data here\n"));
  EXPECT_THAT(done.stderr_text,
              EndsWith("trireme: /job:worker/task:0: ended before it answered: exit code 3; its "
                       "last lines:\n    no data here\n"));
}

TEST(Launch, StopsWaitingForServersAtTheTimeout) {
  const CompletedProcess done = run_trireme(
      {"launch", "--workers", "1", "--same-binary", "--timeout", "0.5", "--", "sleep", "1000"});
  EXPECT_EQ(done.status.code, 1);
  EXPECT_THAT(done.stderr_text,
              HasSubstr("trireme: /job:worker/task:0: did not answer within 500ms: "));
}

// Runs a launch whose processes print their OMP_NUM_THREADS, and returns its output. The variable
// is empty, so not set, in the launch's own environment unless `threads` sets it.
std::string printed_threads(std::vector<std::string> flags, const std::string& threads = "") {
  flags.insert(flags.begin(), "launch");
  flags.insert(flags.end(), {"--", "sh", "-c", "echo threads $OMP_NUM_THREADS"});
  SubprocessOptions options = trireme_command(std::move(flags));
  options.environment["OMP_NUM_THREADS"] = threads;
  return value_or_throw(run_process(std::move(options), after(kLimit))).stdout_text;
}

std::string share_of(int tasks) {
  return absl::StrCat("threads ", std::max(1, usable_cores() / tasks), "\n");
}

TEST(LaunchThreads, TheTasksThatComputeDivideTheCores) {
  EXPECT_EQ(printed_threads({"--workers", "1", "--mirrored"}), share_of(1));
  const std::string mirrored = printed_threads({"--workers", "2", "--mirrored"});
  EXPECT_THAT(mirrored, ContainsRegex("(^|\n)" + share_of(2)));
  EXPECT_THAT(mirrored, HasSubstr("[worker/1] " + share_of(2)));
  // The program waits for the worker, and counts only if there is none.
  EXPECT_EQ(printed_threads({"--workers", "1"}), share_of(1));
  EXPECT_EQ(printed_threads({"--workers", "1", "--ps", "1"}), share_of(2));
  EXPECT_EQ(printed_threads({"--workers", "0", "--ps", "1"}), share_of(2));
  // This "server" ends at once, which ends the launch before the program is started.
  EXPECT_EQ(printed_threads({"--workers", "1", "--same-binary"}), "[worker/0] " + share_of(1));
}

TEST(LaunchThreads, ManyTasksGetOneThreadEach) {
  const std::string tasks = std::to_string(usable_cores() + 1);
  EXPECT_THAT(printed_threads({"--workers", tasks, "--mirrored"}),
              HasSubstr("[worker/1] threads 1\n"));
}

TEST(LaunchThreads, ANumberThatIsSetIsKept) {
  const std::string printed = printed_threads({"--workers", "2", "--mirrored"}, "77");
  EXPECT_THAT(printed, ContainsRegex("(^|\n)threads 77\n"));
  EXPECT_THAT(printed, HasSubstr("[worker/1] threads 77\n"));
}

// Launches servers and a program that runs until it is ended from outside.
class LaunchInterrupted : public testing::Test {
 protected:
  void start() {
    command_ = std::make_unique<RunningCommand>(trireme_command(
        {"launch", "--workers", "1", "--ps", "1", "--", "sh", "-c",
         "sleep 1000 & echo program is $$ and started $!; wait; echo not reached"}));
    program_ = std::stoi(command_->wait_for("program is ([0-9]+) and"));
    started_ = std::stoi(command_->wait_for("and started ([0-9]+)\n"));
    for (const std::string task : {"/job:worker/task:0", "/job:ps/task:0"}) {
      servers_.push_back(std::stoi(command_->wait_for(task + kServes)));
    }
  }

  void expect_nothing_left() {
    EXPECT_TRUE(ends(program_)) << "the program is left over";
    expect_all_end(servers_);
  }
  // The child process of the program ignores SIGINT, as background jobs of a shell do.
  void expect_child_ends() {
    EXPECT_TRUE(ends(started_)) << "the child process of the program is left over";
  }

  std::unique_ptr<RunningCommand> command_;
  pid_t program_ = 0, started_ = 0;
  std::vector<pid_t> servers_;
};

TEST_F(LaunchInterrupted, CtrlCEndsEverything) {
  start();
  command_->process().send_signal(SIGINT);
  EXPECT_EQ(command_->wait(), (ExitStatus{.code = 130})) << command_->text();
  expect_nothing_left();
  expect_child_ends();
  EXPECT_THAT(command_->text(), HasSubstr("/job:ps/task:0 has stopped\n"));
}

TEST_F(LaunchInterrupted, TheTaskIsInTheCommandLineOfItsServer) {
  start();
  std::ifstream file(absl::StrCat("/proc/", servers_[0], "/cmdline"));
  const std::string line((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(absl::StrReplaceAll(line, {{std::string(1, 0), " "}}),
              HasSubstr(" server --job worker --task 0 "));
}

TEST_F(LaunchInterrupted, KillingTheLauncherEndsServersAndProgram) {
  start();
  command_->process().send_signal(SIGKILL);
  command_->wait();
  expect_nothing_left();
  // The kernel ends the children of the launcher, but not the children of those.
  kill(started_, SIGKILL);
}

TEST_F(LaunchInterrupted, TheRestContinuesWhenOneServerEndsEarly) {
  start();
  const std::string pid = command_->wait_for("/job:worker/task:0 serves at .* pid ([0-9]+)");
  kill(std::stoi(pid), SIGKILL);
  command_->wait_for(
      "trireme: warning: /job:worker/task:0 has ended early: killed by SIGKILL; the other tasks "
      "continue");
  EXPECT_TRUE(command_->process().is_running());
  EXPECT_EQ(kill(program_, 0), 0);
  command_->process().send_signal(SIGTERM);
  EXPECT_EQ(command_->wait(), (ExitStatus{.code = 143})) << command_->text();
  expect_nothing_left();
  expect_child_ends();
}

TEST(Launch, TheGraceTimeLimitsAProgramThatIgnoresSigterm) {
  RunningCommand command(trireme_command({"launch", "--workers", "1", "--grace", "0.2", "--", "sh",
                                          "-c", "trap '' TERM; echo ready; sleep 1000"}));
  command.wait_for("ready\n");
  command.process().send_signal(SIGTERM);
  EXPECT_EQ(command.wait(), (ExitStatus{.code = 137})) << command.text();
  EXPECT_THAT(command.text(), HasSubstr("has not ended; sending SIGKILL\n"));
}

TEST(LaunchMirrored, ASignalEndsAllWorkersWithoutAWait) {
  RunningCommand command(trireme_command({"launch", "--workers", "3", "--mirrored", "--grace",
                                          "1000", "--", "sh", "-c", "echo pid $$; sleep 1000"}));
  std::vector<pid_t> pids = {std::stoi(command.wait_for("(?:^|\n)pid ([0-9]+)\n"))};
  for (const std::string task : {"worker/1", "worker/2"}) {
    pids.push_back(std::stoi(command.wait_for("\\[" + task + "\\] pid ([0-9]+)\n")));
  }
  command.process().send_signal(SIGTERM);
  EXPECT_EQ(command.wait(), (ExitStatus{.code = 143})) << command.text();
  expect_all_end(pids);
}

TEST(LaunchMirrored, ASignalEndsTheWaitForTheOtherWorkers) {
  // Worker 0 ends at once, and worker 1 does not.
  RunningCommand command(trireme_command(
      {"launch", "--workers", "2", "--mirrored", "--grace", "1000", "--", "sh", "-c",
       "case \"$TF_CONFIG\" in *'\"index\":0'*) echo first is $$;; *) echo other is $$; sleep "
       "1000;; esac"}));
  const pid_t other = std::stoi(command.wait_for("other is ([0-9]+)\n"));
  const pid_t first = std::stoi(command.wait_for("first is ([0-9]+)\n"));
  ASSERT_TRUE(ends(first));
  command.process().send_signal(SIGTERM);
  EXPECT_EQ(command.wait(), (ExitStatus{.code = 0})) << command.text();
  EXPECT_TRUE(ends(other));
}

TEST(LaunchMirrored, AWorkerThatIsDoneIsNotStartedAgain) {
  // Most workers end before the last one is started, for which worker 0 waits.
  const TemporaryFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const CompletedProcess done =
      run_trireme({"launch", "--workers", "16", "--mirrored", "--restart", "--restart-delay",
                   "0.001", "--", "sh", "-c",
                   "case \"$TF_CONFIG\" in *'\"index\":0'*) read line < " + pipe +
                       ";; *'\"index\":15'*) echo done > " + pipe + ";; esac"});
  EXPECT_EQ(done.status.code, 0) << done.stderr_text;
  EXPECT_EQ(done.stderr_text, "");
}

TEST(LaunchRestart, StartsTheProgramAgainUntilItSucceeds) {
  const TemporaryFolder folder;
  // Is killed, then fails, then is preempted, and then succeeds.
  const CompletedProcess done = run_trireme(
      {"launch", "--workers", "1", "--restart", "--restart-delay", "0.01", "--", "sh", "-c",
       "cd " + folder.path() +
           "; test -f a || { touch a; kill -KILL $$; }; test -f b || { touch b; exit 4; }; "
           "test -f c || { touch c; exit 143; }; echo done"});
  EXPECT_EQ(done.status.code, 0) << done.stderr_text;
  EXPECT_EQ(done.stdout_text, "done\n");
  for (const std::string line : {"killed by SIGKILL; it is started again in 10ms\n",
                                 "exit code 4; it is started again in "
                                 "20ms\n",
                                 "exit code 143; it is started again in 40ms\n"}) {
    EXPECT_THAT(done.stderr_text, HasSubstr("trireme: warning: the program has ended: " + line));
  }
}

TEST(LaunchRestart, GivesUpAProgramThatFailsTenTimes) {
  const CompletedProcess done =
      run_trireme({"launch", "--workers", "1", "--restart", "--restart-delay", "0.001", "--", "sh",
                   "-c", "echo x; exit 6"});
  EXPECT_EQ(done.status.code, 6);
  EXPECT_EQ(done.stdout_text.size(), 20u);
  EXPECT_THAT(done.stderr_text,
              HasSubstr("trireme: the program 'sh' has failed 10 times in a short time, and is not "
                        "started again: exit code 6\n"));
}

TEST(LaunchRestart, StartsAServerAgainOnItsPort) {
  RunningCommand command(
      trireme_command({"launch", "--workers", "1", "--ps", "1", "--restart", "--restart-delay",
                       "0.01", "--", "sh", "-c", "echo program; sleep 1000"}));
  command.wait_for("program\n");
  const pid_t first = std::stoi(command.wait_for("/job:ps/task:0" + kServes));
  const std::string address = command.wait_for("/job:ps/task:0 serves at ([^ ]*) \\(incarnation");
  kill(first, SIGKILL);
  command.wait_for("/job:ps/task:0 has ended: killed by SIGKILL; it is started again in 10ms\n");
  const pid_t second = std::stoi(
      command.wait_for("SIGKILL[^$]*/job:ps/task:0 serves at " + address + " [^\n]*pid ([0-9]+)"));
  EXPECT_NE(first, second);
  command.process().send_signal(SIGTERM);
  EXPECT_EQ(command.wait(), (ExitStatus{.code = 143})) << command.text();
  EXPECT_TRUE(ends(second));
}

TEST(LaunchRestart, SigtermEndsAProgramThatWaitsForItsRestart) {
  RunningCommand command(trireme_command({"launch", "--workers", "1", "--restart",
                                          "--restart-delay", "1000", "--", "sh", "-c", "exit 1"}));
  command.wait_for("it is started again in 16m 40s\n");
  command.process().send_signal(SIGTERM);
  EXPECT_EQ(command.wait(), (ExitStatus{.code = 143})) << command.text();
}

TEST(RestartPolicy, DoublesTheDelayAndBeginsAnewAfterALongLife) {
  using std::chrono::seconds;
  RestartPolicy policy(seconds(1));
  const ExitStatus killed = {.signal = SIGKILL};
  for (const int delay : {1, 2, 4, 8, 16, 30, 30}) {
    EXPECT_EQ(policy.next_delay(killed, seconds(59)), seconds(delay));
  }
  EXPECT_EQ(policy.next_delay(killed, seconds(60)), seconds(1));
}

TEST(RestartPolicy, OnlyFailuresInAShortTimeCount) {
  using std::chrono::seconds;
  RestartPolicy policy(seconds(1));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(policy.next_delay({.signal = SIGKILL}, seconds(0)));
    EXPECT_TRUE(policy.next_delay({.signal = SIGTERM}, seconds(0)));
    EXPECT_TRUE(policy.next_delay({.code = 143}, seconds(0)));
    EXPECT_TRUE(policy.next_delay({.code = 0}, seconds(0)));
  }
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(policy.next_delay({.code = 1}, seconds(0)));
  EXPECT_TRUE(policy.next_delay({.code = 1}, seconds(60)));  // is the first again
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(policy.next_delay({.signal = SIGSEGV}, seconds(0)));
  EXPECT_FALSE(policy.next_delay({.signal = SIGSEGV}, seconds(0)));
}

}  // namespace
}  // namespace trireme
