// Every task of a job and its client program are killed at random moments, over and over, and
// restarted. The job continues from the newest checkpoint: which is whole, and whose step, weights,
// fences and positions belong together. In the end every example was counted once in each epoch.
// TRIREME_KILLS sets the number of kills, TRIREME_SEED their order and times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fault/counted_checkpoint.h"
#include "tests/integration/commands.h"
#include "trireme/base/mutex.h"
#include "trireme/base/subprocess.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/setting.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

const int64_t kKillSeed = setting("TRIREME_SEED", 19);

// The client program, checkpoint_client.cc, with a ledger of what it printed. Thread-safe.
class CountingClient {
 public:
  CountingClient(const ClusterSpec& spec, const std::string& folder, const std::string& mode,
                 bool positions = true) {
    const auto on_line = [this](const std::string& line) { note(line); };
    process_ = value_or_throw(
        Subprocess::start({.argv = {built_program("checkpoint_client"), spec.to_json(), folder,
                                    mode, positions ? "all" : "variables"},
                           .on_stdout = on_line,
                           .on_stderr = on_line,
                           .null_stdin = true}));
  }

  void kill() {
    process_->send_signal(SIGKILL);
    process_->wait(after(kLimit));
  }
  // Returns true if the program ends within `timeout`.
  bool ends_within(Duration timeout) { return process_->wait(after(timeout)).has_value(); }
  // Asks the program to end, and returns true if it ends in order.
  bool end() {
    process_->send_signal(SIGTERM);
    const auto status = process_->wait(after(2 * kLimit));
    return status && status->ok();
  }

  // Lines that the program has printed.
  struct Ledger {
    int restores = 0, saves = 0;  // Numbers of checkpoints that were restored and written.
    int64_t restored = 0;         // Step of the checkpoint that was restored last.
    std::string text;             // All lines except those about saves.
  };
  Ledger ledger() const {
    MutexLock lock(mutex_);
    return ledger_;
  }
  std::string text() const { return ledger().text; }

  // Blocks until the program has restored a checkpoint `times` times. Returns the step of the last
  // one, or -1 if it does not come that far.
  int64_t restored(int times) {
    return reaches([&](const Ledger& ledger) { return ledger.restores >= times; })
               ? ledger().restored
               : -1;
  }
  // Blocks until the program has written `more` more checkpoints. Returns false if it does not.
  bool saves(int more) {
    const int wanted = ledger().saves + more;
    return reaches([&](const Ledger& ledger) { return ledger.saves >= wanted; });
  }

 private:
  void note(const std::string& line) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    MutexLock lock(mutex_);
    if (word == "saved") {
      ++ledger_.saves;
      return;
    }
    if (word == "restored") {
      ++ledger_.restores;
      words >> ledger_.restored;
    }
    ledger_.text += line + "\n";
  }
  template <typename Condition>
  bool reaches(const Condition& holds) {
    wait_until([&] { return holds(ledger()) || !process_->is_running(); }, 2 * kLimit);
    return holds(ledger());
  }

  mutable Mutex mutex_;
  Ledger ledger_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Subprocess> process_;  // Last, so that no line arrives after its end.
};

class CheckpointKills : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { start_client(); }

  void start_client(bool positions = true) {
    client_.emplace(cluster_.spec(), folder_.path(), GetParam(), positions);
  }

  // Checks that all checkpoints in the folder are right. No program must save meanwhile.
  void check_all() {
    for (const std::string& path : checkpoints_in(folder_.path())) {
      EXPECT_EQ(disagreement(path), "") << path;
    }
  }

  // Checks the newest checkpoint while the program goes on, which removes old ones.
  void check_newest() {
    while (true) {
      const std::string path = checkpoints_in(folder_.path()).front();
      try {
        EXPECT_EQ(disagreement(path), "") << path << "\n" << client_->text();
        return;
      } catch (const Error& error) {
        const std::vector<std::string> left = checkpoints_in(folder_.path());
        ASSERT_EQ(std::count(left.begin(), left.end(), path), 0) << error.what();
      }
    }
  }

  void kill_client() {
    client_->kill();
    check_all();
    const std::vector<std::string> left = checkpoints_in(folder_.path());
    ASSERT_FALSE(left.empty());
    start_client();
    const int64_t restored = client_->restored(1);
    EXPECT_THAT(left.front(), testing::EndsWith(absl::StrCat(restored))) << client_->text();
  }

  void kill_server(int index) {
    const int restores = client_->ledger().restores;
    cluster_.restart({"ps", index});
    ASSERT_GE(client_->restored(restores + 1), 0) << client_->text();
  }

  // Kills a task or the client at a random time, and waits until the job has gone on.
  void kill(int victim) {
    ASSERT_FALSE(client_->ends_within(milliseconds(random_() % 1500))) << client_->text();
    if (victim == 0) {
      ASSERT_NO_FATAL_FAILURE(kill_client());
    } else if (victim <= 2) {
      ASSERT_NO_FATAL_FAILURE(kill_server(victim - 1));
    } else {
      cluster_.restart({"worker", victim - 3});
    }
    // The cut of the second one is certainly after the kill.
    ASSERT_TRUE(client_->saves(2)) << client_->text();
    check_newest();
  }

  std::mt19937 random_{static_cast<uint32_t>(kKillSeed)};
  TemporaryFolder folder_;
  ProcessCluster cluster_{
      {{.workers = 2, .ps = 2}, /*flags=*/{"--checkpoint-root", folder_.path()}}};
  std::optional<CountingClient> client_;
};

TEST_P(CheckpointKills, EveryExampleCountsOnceInEachEpoch) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kKillSeed));
  EXPECT_EQ(client_->restored(1), 0) << client_->text();
  ASSERT_TRUE(client_->saves(1)) << client_->text();
  std::vector<int> victims = {0, 1, 2, 3, 4};
  const int64_t kills = setting("TRIREME_KILLS", 5);
  for (int64_t i = 0; i < kills; ++i) {
    if (i % 5 == 0) std::shuffle(victims.begin(), victims.end(), random_);
    SCOPED_TRACE(absl::StrCat("kill ", i, " of victim ", victims[i % 5]));
    ASSERT_NO_FATAL_FAILURE(kill(victims[i % 5]));
  }
  ASSERT_TRUE(client_->end()) << client_->text();
  check_all();
}

// The check can fail: a program that restores no positions counts examples twice.
TEST_P(CheckpointKills, AProgramThatRestoresNoPositionsIsNoticed) {
  ASSERT_TRUE(client_->saves(3)) << client_->text();
  client_->kill();
  check_all();
  start_client(/*positions=*/false);
  ASSERT_GT(client_->restored(1), 0) << client_->text();
  ASSERT_TRUE(client_->saves(2)) << client_->text();
  ASSERT_TRUE(client_->end()) << client_->text();
  EXPECT_THAT(disagreement(checkpoints_in(folder_.path()).front()), HasSubstr("positions:"));
}

INSTANTIATE_TEST_SUITE_P(Modes, CheckpointKills, testing::Values("copy", "stream"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace trireme
