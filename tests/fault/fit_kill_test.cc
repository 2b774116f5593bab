// A fit() with BackupAndRestore whose processes are killed at random moments and started again ends
// with exactly the weights, the history and the decisions of its callbacks of an undisturbed one.
// TRIREME_KILLS sets the number of kills, TRIREME_SEED their order and times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/commands.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/setting.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;

const int64_t kFitSeed = setting("TRIREME_SEED", 23);
const int64_t kFitKills = setting("TRIREME_KILLS", 2);

// Returns the bytes of each file that a program has written at its end.
std::map<std::string, std::string> results_in(const std::string& folder) {
  std::map<std::string, std::string> results;
  for (const std::string name : {"last.safetensors", "best.safetensors", "history.json"}) {
    std::ifstream file(absl::StrCat(folder, "/", name), std::ios::binary);
    results[name] = std::string(std::istreambuf_iterator<char>(file), {});
    EXPECT_FALSE(results[name].empty()) << name;
  }
  return results;
}

// Returns the last process id that follows a text in the output.
std::optional<pid_t> last_pid(const std::string& text, const std::string& before) {
  std::optional<pid_t> pid;
  const std::regex pattern(before + "([0-9]+)");
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    pid = std::stoi((*match)[1]);
  }
  return pid;
}

// Returns true if the process runs one of the programs of this test.
bool is_ours(pid_t pid) {
  std::error_code error;
  const std::string program =
      std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/exe"), error);
  return program == built_program("fit_client") || program == built_program("trireme");
}

// Returns true if the command ends with exit code 0, also if there are many epochs.
bool ends_well(RunningCommand& command) {
  const auto status = command.process().wait(after(5 * kLimit));
  return status && status->ok();
}

// Returns how often a line is in the output.
int64_t count_of(const std::string& text, const std::string& line) {
  int64_t count = 0;
  for (size_t at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) ++count;
  return count;
}

// Runs fit_client without and with kills, and compares the results.
class FitKills : public testing::Test {
 protected:
  // Returns the words of the client program.
  std::vector<std::string> client(const std::string& folder) const {
    return {built_program("fit_client"), folder, absl::StrCat(epochs_), absl::StrCat(steps_),
            absl::StrCat(steps_per_execution_)};
  }
  // Returns the command that runs the client with one worker and one parameter server.
  SubprocessOptions launched(const std::string& folder) const {
    std::vector<std::string> words = {
        "launch", "--workers",         "1",    "--ps", "1", "--restart", "--restart-delay",
        "0.05",   "--checkpoint-root", folder, "--"};
    for (const std::string& word : client(folder)) words.push_back(word);
    return trireme_command(std::move(words));
  }
  void expect_same(const TemporaryFolder& disturbed, const TemporaryFolder& undisturbed) {
    const auto expected = results_in(undisturbed.path());
    for (const auto& [name, bytes] : results_in(disturbed.path())) {
      EXPECT_TRUE(bytes == expected.at(name)) << name << " differs";
    }
    EXPECT_EQ(results_in(disturbed.path())["history.json"], expected.at("history.json"));
  }
  milliseconds up_to(int64_t most) { return milliseconds(random_() % most); }

  std::mt19937 random_{static_cast<uint32_t>(kFitSeed)};
  int64_t epochs_ = 2 + 3 * kFitKills, steps_ = 0, steps_per_execution_ = 5;
};

TEST_F(FitKills, InOneProcessEndsAsIfItWereNotKilled) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kFitSeed));
  steps_ = 1000;
  const TemporaryFolder undisturbed, folder;
  const auto run = [&](const TemporaryFolder& where) {
    return std::make_unique<RunningCommand>(
        SubprocessOptions{.argv = client(where.path()), .null_stdin = true});
  };
  auto whole = run(undisturbed);
  for (int64_t i = 0; i < kFitKills; ++i) {
    auto killed = run(folder);
    killed->wait_for("fit\n");
    if (killed->process().wait(after(up_to(700)))) break;
    // SIGTERM saves, at the latest after a validation, and must lose nothing either.
    const bool terminate = random_() % 3 == 0;
    killed->process().send_signal(terminate ? SIGTERM : SIGKILL);
    const ExitStatus status = killed->wait();
    if (status.ok()) break;  // it was faster
    EXPECT_EQ(status, terminate ? (ExitStatus{.code = 143}) : (ExitStatus{.signal = SIGKILL}))
        << killed->text();
  }
  auto last = run(folder);
  EXPECT_TRUE(ends_well(*last)) << last->text();
  EXPECT_TRUE(ends_well(*whole)) << whole->text();
  expect_same(folder, undisturbed);
}

TEST_F(FitKills, OfEachTaskOfAClusterIsRestarted) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kFitSeed));
  // An epoch is one closure, since closures that a worker gets at the same time may run in another
  // order, even if nothing is killed.
  steps_ = steps_per_execution_ = 100;
  const TemporaryFolder undisturbed, folder;
  RunningCommand whole(launched(undisturbed.path()));
  EXPECT_TRUE(ends_well(whole)) << whole.text();
  RunningCommand run(launched(folder.path()));
  std::vector<std::string> victims = {"client ", "/job:worker/task:0 serves at [^\n]* pid ",
                                      "/job:ps/task:0 serves at [^\n]* pid "};
  for (int64_t i = 0; i < kFitKills; ++i) {
    if (i % 3 == 0) std::shuffle(victims.begin(), victims.end(), random_);
    run.wait_for("fit\n");
    if (run.process().wait(after(up_to(1500)))) break;
    // The program may have ended by itself because of the kill before.
    std::optional<pid_t> pid;
    ASSERT_TRUE(wait_until(
        [&] {
          pid = last_pid(run.text(), victims[i % 3]);
          return (pid && is_ours(*pid)) || !run.process().is_running();
        },
        kLimit))
        << run.text();
    if (!run.process().is_running()) break;
    kill(*pid, SIGKILL);
  }
  EXPECT_TRUE(ends_well(run)) << run.text();
  EXPECT_GT(count_of(run.text(), "is started again in"), 0) << run.text();
  expect_same(folder, undisturbed);
}

}  // namespace
}  // namespace trireme
