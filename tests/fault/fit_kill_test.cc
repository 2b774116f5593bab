// A fit() with BackupAndRestore whose processes are killed at random moments and started again.
// With one worker it ends with exactly the weights, the history and the decisions of its callbacks
// of an undisturbed one; with several, every step and every example counts once in each epoch.
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
#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/setting.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

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

// Returns a pattern before the process id of a server in the output of the launcher.
std::string server_pid(const std::string& job, int index) {
  return absl::StrCat("/job:", job, "/task:", index, " serves at [^\n]* pid ");
}

// Runs fit_client without and with kills, and compares the results.
class FitKills : public testing::Test {
 protected:
  // Returns the words of the client program.
  std::vector<std::string> client(const std::string& folder) const {
    std::vector<std::string> words = {built_program("fit_client"),
                                      mode_,
                                      folder,
                                      absl::StrCat(epochs_),
                                      absl::StrCat(steps_),
                                      absl::StrCat(steps_per_execution_)};
    if (!strategy_.empty()) words.insert(words.end(), {"--strategy", strategy_});
    return words;
  }
  // Returns the command that runs the client with a cluster.
  SubprocessOptions launched(const std::string& folder, int workers, int ps) const {
    std::vector<std::string> words = {"launch",
                                      "--workers",
                                      absl::StrCat(workers),
                                      "--ps",
                                      absl::StrCat(ps),
                                      "--restart",
                                      "--restart-delay",
                                      "0.05",
                                      "--checkpoint-root",
                                      folder,
                                      "--"};
    for (const std::string& word : client(folder)) words.push_back(word);
    return trireme_command(std::move(words));
  }
  // Lets the client of a folder begin the last epoch.
  static void allow_end(const TemporaryFolder& folder) {
    std::ofstream(folder.path() + "/last_epoch");
  }
  // Sends a signal to the last process whose id follows `victim` in the output, once it runs.
  static void kill_last(RunningCommand& run, const std::string& victim, int signal = SIGKILL) {
    std::optional<pid_t> pid;
    // It may have ended by itself because of the kill before.
    ASSERT_TRUE(wait_until(
        [&] {
          pid = last_pid(run.text(), victim);
          return pid && is_ours(*pid);
        },
        kLimit))
        << run.text();
    kill(*pid, signal);
  }
  // Kills one victim after the other at random moments, and lets the run end then.
  void kill_at_random(RunningCommand& run, const TemporaryFolder& folder,
                      std::vector<std::string> victims) {
    run.wait_for("fit\n");
    for (int64_t i = 0; i < kFitKills; ++i) {
      const size_t next = i % victims.size();
      if (next == 0) std::shuffle(victims.begin(), victims.end(), random_);
      ASSERT_FALSE(run.process().wait(after(up_to(1500)))) << run.text();
      ASSERT_NO_FATAL_FAILURE(kill_last(run, victims[next]));
    }
    allow_end(folder);
  }
  void expect_same(const TemporaryFolder& disturbed, const TemporaryFolder& undisturbed) {
    const auto expected = results_in(undisturbed.path());
    for (const auto& [name, bytes] : results_in(disturbed.path())) {
      EXPECT_TRUE(bytes == expected.at(name)) << name << " differs";
    }
    EXPECT_EQ(results_in(disturbed.path())["history.json"], expected.at("history.json"));
  }
  // Returns the line of a client that has counted everything once in each epoch.
  std::string all_counted() const {
    const int64_t steps = epochs_ * steps_;
    return absl::StrCat("used each example ", epochs_, " to ", epochs_, " times in ", steps,
                        " steps; fit() counts ", steps, "\n");
  }
  // Returns the step of the newest checkpoint, or 0 if there is none.
  static int64_t newest_step(const TemporaryFolder& folder) {
    const internal::CheckpointDirectory backup(Files::local(), folder.path() + "/backup");
    const auto entries = value_or_throw(backup.list());
    return entries.empty() ? 0 : static_cast<int64_t>(entries[0].step);
  }
  milliseconds up_to(int64_t most) { return milliseconds(random_() % most); }

  std::mt19937 random_{static_cast<uint32_t>(kFitSeed)};
  std::string mode_ = "learn", strategy_;
  int64_t epochs_ = 2 + 3 * kFitKills, steps_ = 0, steps_per_execution_ = 5;
};

TEST_F(FitKills, InOneProcessEndsAsIfItWereNotKilled) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kFitSeed));
  steps_ = 1000;
  const TemporaryFolder undisturbed, folder;
  for (const TemporaryFolder* each : {&undisturbed, &folder}) allow_end(*each);
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

// The launcher gets no signal. It starts the program again because of its exit code.
TEST_F(FitKills, BySigtermUnderMirroredStrategyLoseNoStep) {
  strategy_ = "mirrored";
  steps_ = 200;
  epochs_ = 5;
  const TemporaryFolder undisturbed, folder;
  allow_end(undisturbed);
  RunningCommand whole({.argv = client(undisturbed.path()), .null_stdin = true});
  RunningCommand run(launched(folder.path(), 1, 0));
  ASSERT_TRUE(wait_until([&] { return newest_step(folder) >= steps_; }, kLimit)) << run.text();
  ASSERT_NO_FATAL_FAILURE(kill_last(run, "client ", SIGTERM));
  allow_end(folder);
  const std::string saved =
      run.wait_for("fit\\(\\) has saved step ([0-9]+) to .* exits with code 143\n");
  run.wait_for("the program has ended: exit code 143; it is started again in");
  EXPECT_EQ(run.wait_for("fit\\(\\) continues at .* and ([0-9]+) steps in all"), saved);
  EXPECT_TRUE(ends_well(run)) << run.text();
  EXPECT_TRUE(ends_well(whole)) << whole.text();
  expect_same(folder, undisturbed);
}

// Two workers that train together. SIGTERM at one of them lets both save one step and exit. Later
// both are killed, and nothing is saved then.
TEST_F(FitKills, OfWorkersThatTrainTogetherLoseNoStep) {
  strategy_ = "multi_worker_mirrored";
  steps_ = 100;
  epochs_ = 4;
  const TemporaryFolder undisturbed, folder;
  allow_end(undisturbed);
  const PortReservation first = value_or_throw(PortReservation::make());
  const PortReservation second = value_or_throw(PortReservation::make());
  using Workers = std::vector<std::unique_ptr<RunningCommand>>;
  const auto run = [&](const TemporaryFolder& where) {
    Workers workers;
    for (int i = 0; i < 2; ++i) {
      const std::string config =
          absl::StrCat(R"({"cluster": {"worker": [")", first.address(), R"(", ")", second.address(),
                       R"("]}, "task": {"type": "worker", "index": )", i, "}}");
      workers.push_back(
          std::make_unique<RunningCommand>(SubprocessOptions{.argv = client(where.path()),
                                                             .environment = {{"TF_CONFIG", config}},
                                                             .null_stdin = true}));
    }
    return workers;
  };
  const auto expect_end = [](const Workers& workers) {
    for (const auto& worker : workers) EXPECT_TRUE(ends_well(*worker)) << worker->text();
  };
  expect_end(run(undisturbed));

  Workers workers = run(folder);
  const auto reaches = [&](int64_t step) {
    return wait_until([&] { return newest_step(folder) >= step; }, kLimit);
  };
  ASSERT_TRUE(reaches(steps_)) << workers[0]->text() << workers[1]->text();
  workers[1]->process().send_signal(SIGTERM);
  allow_end(folder);  // it may wait in the last epoch already
  for (const auto& worker : workers) {
    EXPECT_EQ(worker->wait(), (ExitStatus{.code = 143})) << worker->text();
  }
  const std::string saved = workers[0]->wait_for("fit\\(\\) has saved step ([0-9]+) to ");
  EXPECT_EQ(absl::StrCat(newest_step(folder)), saved);

  workers = run(folder);
  EXPECT_EQ(workers[0]->wait_for("fit\\(\\) continues at .* and ([0-9]+) steps in all"), saved);
  ASSERT_TRUE(reaches(std::stol(saved) + 1)) << workers[0]->text() << workers[1]->text();
  for (const auto& worker : workers) worker->process().send_signal(SIGKILL);
  for (const auto& worker : workers) worker->wait();
  expect_end(run(folder));
  expect_same(folder, undisturbed);
}

TEST_F(FitKills, OfEachTaskOfAClusterIsRestarted) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kFitSeed));
  steps_ = 100;  // 20 executions in each epoch, several of which are in flight
  const TemporaryFolder undisturbed, folder;
  allow_end(undisturbed);
  RunningCommand whole(launched(undisturbed.path(), 1, 1));
  EXPECT_TRUE(ends_well(whole)) << whole.text();
  RunningCommand run(launched(folder.path(), 1, 1));
  kill_at_random(run, folder, {"client ", server_pid("worker", 0), server_pid("ps", 0)});
  EXPECT_TRUE(ends_well(run)) << run.text();
  EXPECT_GT(count_of(run.text(), "is started again in"), 0) << run.text();
  expect_same(folder, undisturbed);
  if (HasFailure()) ADD_FAILURE() << run.text();
}

TEST_F(FitKills, OfSeveralWorkersLoseAndRepeatNoStep) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kFitSeed));
  mode_ = "count";
  steps_ = 400;
  const TemporaryFolder folder;
  RunningCommand run(launched(folder.path(), 2, 2));
  kill_at_random(run, folder,
                 {"client ", server_pid("worker", 0), server_pid("worker", 1), server_pid("ps", 0),
                  server_pid("ps", 1)});
  EXPECT_TRUE(ends_well(run)) << run.text();
  EXPECT_THAT(run.text(), HasSubstr(all_counted()));
}

// The launcher starts the server and the program again; nobody else does anything.
TEST_F(FitKills, OfAServerContinuesFromTheLastCheckpoint) {
  mode_ = "count";
  steps_ = 400;
  epochs_ = 5;
  const TemporaryFolder folder;
  RunningCommand run(launched(folder.path(), 2, 2));
  ASSERT_TRUE(wait_until([&] { return newest_step(folder) >= steps_; }, kLimit)) << run.text();
  const int64_t saved = newest_step(folder);
  kill_last(run, server_pid("ps", 1));
  allow_end(folder);
  EXPECT_TRUE(ends_well(run)) << run.text();
  EXPECT_THAT(run.text(), HasSubstr(all_counted()));
  EXPECT_THAT(run.text(), HasSubstr("error DATA_LOSS: /job:ps/task:1: "));
  EXPECT_THAT(run.text(), HasSubstr("/job:ps/task:1 has ended: killed by SIGKILL; it is started"));
  EXPECT_THAT(run.text(), HasSubstr("the program has ended: exit code 1; it is started again in"));
  EXPECT_GE(std::stol(run.wait_for("fit\\(\\) continues at .* and ([0-9]+) steps in all")), saved);
}

}  // namespace
}  // namespace trireme
