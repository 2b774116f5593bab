// Saves and restores that fail: a parameter server is killed in each call of a save, the disk is
// full, and each byte of a checkpoint is damaged. The checkpoint before it is used each time.
// TRIREME_DAMAGE_EVERY sets the distance of the bytes that are damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/strategy/parameter_server_strategy.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/setting.h"
#include "trireme/testing/small_disk.h"
#include "trireme/train/checkpoint_manager.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::MatchesRegex;
using torch::Tensor;

// A program with one variable that has a shard on each server.
struct SavingProgram {
  SavingProgram(const ClusterSpec& spec, const std::string& folder, int64_t rows,
                const CheckpointOptions& options)
      : rows(rows),
        strategy(Cluster(spec), {.partitioner = FixedPartitioner(2)}),
        scope(strategy.scope()),
        table("table", torch::zeros({rows, 256})),
        manager(folder, {table}, options) {}

  // Fills the variable with a number, and saves it as the checkpoint of that step.
  void save(int number) {
    table.assign(torch::full({rows, 256}, number, torch::kFloat));
    manager.save(number);
    manager.wait();
  }
  // Returns the number that the variable is filled with, or -1 if it has several.
  int number() const {
    const Tensor values = table.read();
    const float first = values[0][0].item<float>();
    return values.eq(first).all().item<bool>() ? static_cast<int>(first) : -1;
  }

  const int64_t rows;
  const ParameterServerStrategy strategy;
  const ParameterServers::Scope scope;
  const Variable table;
  CheckpointManager manager;
};

class SaveFaults : public testing::Test {
 protected:
  // Large enough that a server is busy for some time in each call.
  static constexpr int64_t kManyRows = 200 << 10;

  SavingProgram program(const CheckpointOptions& options = {}) const {
    return {cluster_.spec(), folder_.path(), kManyRows, options};
  }

  // Does `work`, kills the server and restarts it once `begun` returns true, and returns the text
  // of the error that `work` throws.
  std::string error_after_kill(const std::function<void()>& work,
                               const std::function<bool()>& begun) {
    auto error = std::async(std::launch::async, [&] { return error_text(work); });
    const Time limit = after(seconds(60));
    while (!begun() && Clock::real().now() < limit) std::this_thread::yield();
    cluster_.restart(kServer);
    return error.get();
  }
  // Returns true if the server has a file of tensors open.
  bool has_open_file() const {
    std::error_code ignored;
    for (const auto& entry :
         fs::directory_iterator(absl::StrCat("/proc/", cluster_.pid(kServer), "/fd"), ignored)) {
      if (fs::read_symlink(entry, ignored).extension() == ".safetensors") return true;
    }
    return false;
  }
  // Checks that a new program finds the checkpoint.
  void expect_restored(int number) {
    SavingProgram next = program();
    EXPECT_EQ(next.manager.restore_or_initialize(), number);
    EXPECT_EQ(next.number(), number);
    next.save(number + 10);
    EXPECT_EQ(next.manager.restore_or_initialize(), number + 10);
  }

  static inline const TaskId kServer{"ps", 1};
  static constexpr char kLostServer[] = "/job:ps/task:1: the parameter server is lost";
  TemporaryFolder folder_;
  ProcessCluster cluster_{
      {{.workers = 1, .ps = 2}, /*flags=*/{"--checkpoint-root", folder_.path()}}};
};

TEST_F(SaveFaults, AServerIsKilledAsASaveBegins) {
  {
    SavingProgram saving = program();
    saving.save(1);
    const std::string folder = folder_.path() + "/step-0000000002";
    EXPECT_THAT(error_after_kill([&] { saving.save(2); }, [&] { return fs::exists(folder); }),
                HasSubstr(kLostServer));
  }
  expect_restored(1);
}

TEST_F(SaveFaults, AServerIsKilledWhileItWrites) {
  for (const SaveMode mode : {SaveMode::kCopy, SaveMode::kStream}) {
    SCOPED_TRACE(static_cast<int>(mode));
    const int number = mode == SaveMode::kCopy ? 1 : 21;
    {
      SavingProgram saving = program({.mode = mode});
      saving.save(number);
      EXPECT_THAT(
          error_after_kill([&] { saving.save(number + 1); }, [&] { return has_open_file(); }),
          HasSubstr(kLostServer));
    }
    expect_restored(number);
  }
}

TEST_F(SaveFaults, AServerIsKilledWhileItLoads) {
  {
    SavingProgram saving = program();
    saving.save(1);
    EXPECT_THAT(error_after_kill([&] { saving.manager.restore_or_initialize(); },
                                 [&] { return has_open_file(); }),
                HasSubstr(kLostServer));
  }
  expect_restored(1);
}

TEST_F(SaveFaults, AFullDiskFailsTheSaveAndNothingElse) {
  const std::string folder = folder_.path() + "/small";
  const SmallDisk disk(folder, "25m");
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount a file system";
  for (const SaveMode mode : {SaveMode::kCopy, SaveMode::kStream}) {
    SCOPED_TRACE(static_cast<int>(mode));
    // Each checkpoint has 10 MiB.
    SavingProgram saving(cluster_.spec(), folder, 10 << 10, {.keep = 0, .mode = mode});
    saving.save(1);
    saving.save(2);
    const std::string text = error_text([&] { saving.save(3); });
    EXPECT_THAT(text, MatchesRegex("/job:ps/task:[01]: cannot write '" + folder +
                                   "/step-0000000003/ps-[01]-of-2.safetensors': No space left on "
                                   "device; free space there, or use a folder on another file "
                                   "system"));
    EXPECT_EQ(saving.number(), 3) << "the servers hold what they held";
    EXPECT_EQ(saving.manager.restore_or_initialize(), 2);
    EXPECT_EQ(saving.number(), 2);
    fs::remove_all(folder + "/step-0000000001");
    saving.save(4);
    EXPECT_EQ(saving.manager.restore_or_initialize(), 4);
    for (const auto& entry : fs::directory_iterator(folder)) fs::remove_all(entry);
  }
}

// Damages files of the newest checkpoint and repairs them.
class DamagedCheckpoint : public testing::Test {
 protected:
  DamagedCheckpoint()
      : strategy_(Cluster(cluster_.spec()), {.partitioner = FixedPartitioner(2)}),
        scope_(strategy_.scope()),
        table_("table", torch::zeros({4, 2})),
        optimizer_({table_}, {.lr = 0.5}),
        manager_(folder_.path(), {optimizer_}) {
    set_log_level(LogLevel::kError);  // There is a warning for each checkpoint that is damaged.
    for (const int number : {1, 2}) {
      table_.assign(torch::full({4, 2}, number));
      manager_.save(number);
      manager_.wait();
    }
  }

  ~DamagedCheckpoint() override { set_log_level(LogLevel::kInfo); }

  // Restores, and returns true if the first checkpoint was used.
  bool falls_back() {
    table_.assign(torch::zeros({4, 2}));
    return manager_.restore_or_initialize() == 1 && table_.read().equal(torch::ones({4, 2}));
  }
  // Calls `damage` with each file of the second checkpoint, its contents, and a function that
  // writes other contents into the file. Repairs the file afterwards.
  void for_each_file(
      const std::function<void(const std::string& name, const std::string& contents,
                               const std::function<void(std::string)>& write)>& damage) {
    int files = 0;
    for (const auto& entry : fs::directory_iterator(folder_.path() + "/step-0000000002")) {
      const std::string path = entry.path();
      std::ifstream file(path, std::ios::binary);
      const std::string contents{std::istreambuf_iterator<char>(file), {}};
      const auto write = [&](const std::string& text) {
        std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
      };
      damage(entry.path().filename(), contents, write);
      write(contents);
      ++files;
    }
    EXPECT_GE(files, 3);  // One of each server, and the manifest.
    EXPECT_EQ(manager_.restore_or_initialize(), 2) << "the checkpoint was not repaired";
  }

  TemporaryFolder folder_;
  ProcessCluster cluster_{
      {{.workers = 1, .ps = 2}, /*flags=*/{"--checkpoint-root", folder_.path()}}};
  ParameterServerStrategy strategy_;
  ParameterServers::Scope scope_;
  const Variable table_;
  const Adam optimizer_;
  CheckpointManager manager_;
  const size_t every_ = setting("TRIREME_DAMAGE_EVERY", 211);
};

TEST_F(DamagedCheckpoint, AnyByteThatIsFlippedMakesItTheOneBefore) {
  for_each_file([&](const auto& name, const auto& contents, const auto& write) {
    for (size_t i = 0; i < contents.size(); i += every_) {
      std::string damaged = contents;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      write(damaged);
      ASSERT_TRUE(falls_back()) << name << ", byte " << i;
    }
  });
}

TEST_F(DamagedCheckpoint, AnyTruncationMakesItTheOneBefore) {
  for_each_file([&](const auto& name, const auto& contents, const auto& write) {
    for (size_t i = 0; i < contents.size(); i += every_) {
      write(contents.substr(0, i));
      ASSERT_TRUE(falls_back()) << name << ", cut to " << i << " bytes";
    }
  });
}

}  // namespace
}  // namespace trireme
