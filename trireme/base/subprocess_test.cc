#include "trireme/base/subprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <future>
#include <thread>

#include "trireme/base/status.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

SubprocessOptions shell(const std::string& script) {
  return {.argv = {"sh", "-c", script}};
}

CompletedProcess run(SubprocessOptions options) {
  return value_or_throw(run_process(std::move(options), after(seconds(20))));
}

std::unique_ptr<Subprocess> start(SubprocessOptions options) {
  return value_or_throw(Subprocess::start(std::move(options)));
}

// Returns true if the process is gone, or is a zombie that waits for its adoptive parent.
bool is_gone(pid_t pid) {
  if (kill(pid, 0) != 0) return errno == ESRCH;
  const auto state = run({.argv = {"ps", "-o", "stat=", "-p", std::to_string(pid)}});
  return state.stdout_text.empty() || state.stdout_text[0] == 'Z';
}

bool becomes_gone(pid_t pid) {
  for (const Time limit = after(seconds(10)); Clock::real().now() < limit;) {
    if (is_gone(pid)) return true;
  }
  return false;
}

TEST(Subprocess, ReportsTheExitCodeOrTheSignal) {
  EXPECT_EQ(run(shell("exit 0")).status.to_string(), "exit code 0");
  EXPECT_EQ(run(shell("exit 7")).status, (ExitStatus{.code = 7}));
  const ExitStatus killed = run(shell("kill -KILL $$")).status;
  EXPECT_EQ(killed.to_string(), "killed by SIGKILL");
  EXPECT_EQ(killed.shell_code(), 137);
}

TEST(Subprocess, DeliversEveryLineIncludingAnUnfinishedOne) {
  const CompletedProcess done = run(shell("printf 'a\\n\\nb'; printf 'c\\n' >&2"));
  EXPECT_EQ(done.stdout_text, "a\n\nb\n");
  EXPECT_EQ(done.stderr_text, "c\n");
  EXPECT_EQ(run(shell("seq 1 20000")).stdout_text.size(), 108894u);
}

TEST(Subprocess, AddsVariablesToTheEnvironment) {
  SubprocessOptions options = shell("echo \"$TRIREME_TEST ${PATH:+path}\"");
  options.environment = {{"TRIREME_TEST", "a b"}};
  EXPECT_EQ(run(options).stdout_text, "a b path\n");
}

TEST(Subprocess, NamesTheProgramThatCannotRun) {
  EXPECT_EQ(describe(Subprocess::start({.argv = {"./no-such-program"}}).status()),
            "cannot run './no-such-program': No such file or directory");
  EXPECT_EQ(describe(Subprocess::start({.argv = {"no-such-program"}}).status()),
            "cannot run 'no-such-program': No such file or directory");
  EXPECT_EQ(error_code(Subprocess::start({}).status()), ErrorCode::kInvalidArgument);
}

TEST(Subprocess, WaitIsBoundedAndSignalsArrive) {
  auto process = start({.argv = {"sleep", "100"}});
  EXPECT_EQ(process->wait(after(milliseconds(1))), std::nullopt);
  EXPECT_TRUE(process->is_running());
  process->send_signal(SIGTERM);
  EXPECT_EQ(process->wait(after(seconds(10))), (ExitStatus{.signal = SIGTERM}));
  process->send_signal(SIGTERM);  // Does nothing: the process has ended.
}

TEST(Subprocess, CallsOnExitOnce) {
  std::promise<ExitStatus> ended;
  SubprocessOptions options = shell("exit 3");
  options.on_exit = [&](const ExitStatus& status) { ended.set_value(status); };
  auto process = start(options);
  EXPECT_EQ(ended.get_future().get(), (ExitStatus{.code = 3}));
}

TEST(Subprocess, IsKilledWithItsObject) {
  pid_t pid = 0;
  {
    auto process = start({.argv = {"sleep", "100"}});
    pid = process->pid();
  }
  EXPECT_TRUE(is_gone(pid));
}

TEST(Subprocess, KillsTheGroupWhenItsLeaderEnds) {
  std::promise<pid_t> child;
  SubprocessOptions options = shell("sleep 100 & echo $!; wait");
  options.own_group = true;
  options.on_stdout = [&](const std::string& line) { child.set_value(std::stoi(line)); };
  auto process = start(options);
  const pid_t pid = child.get_future().get();
  process->send_signal(SIGTERM);
  EXPECT_TRUE(process->wait(after(seconds(10))));
  EXPECT_TRUE(becomes_gone(pid));
}

TEST(Subprocess, EndsAlthoughAGrandchildHoldsThePipes) {
  const CompletedProcess done = run(shell("sleep 2 & echo started"));
  EXPECT_EQ(done.stdout_text, "started\n");
}

TEST(Subprocess, RunProcessKillsAtItsDeadline) {
  const auto late = run_process(shell("echo started; exec sleep 100"), after(milliseconds(500)));
  EXPECT_EQ(error_code(late.status()), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(describe(late.status()), HasSubstr("was killed; it wrote: "));
}

TEST(Subprocess, OutlivesTheThreadThatStartedIt) {
  // The kernel ties the signal at the parent's death to the thread that forked.
  std::unique_ptr<Subprocess> process;
  std::thread([&] { process = start({.argv = {"sleep", "100"}}); }).join();
  EXPECT_EQ(process->wait(after(milliseconds(100))), std::nullopt)
      << "the child ended with the thread";
}

}  // namespace
}  // namespace trireme
