// Crashes at every operation of saving and of removing a checkpoint.
#include <gtest/gtest.h>

#include "trireme/checkpoint/sample_checkpoint.h"
#include "trireme/testing/unsynced_files.h"

namespace trireme::internal {
namespace {

constexpr char kFolder[] = "/job/checkpoints";

// How the process ends at the chosen operation.
enum class Crash { kKill, kLossOfBytes, kLossOfNamesAndBytes, kLossOfEarlierNames };

void recover(UnsyncedFiles& files, Crash crash) {
  if (crash == Crash::kKill) files.restart();
  if (crash == Crash::kLossOfBytes) files.lose_power(UnsyncedFiles::Loss::kBytes);
  if (crash == Crash::kLossOfNamesAndBytes) {
    files.lose_power(UnsyncedFiles::Loss::kNamesAndBytes);
  }
  if (crash == Crash::kLossOfEarlierNames) {
    files.lose_power(UnsyncedFiles::Loss::kEarlierNamesAndBytes);
  }
}

std::vector<CheckpointEntry> checkpoints_in(Files& files) {
  return value_or_throw(CheckpointDirectory(files, kFolder).list());
}

// Returns the number of operations of `work`.
template <class Work>
int operations_of(UnsyncedFiles& files, const Work& work) {
  files.restart();
  work();
  return files.operations();
}

class CrashTest : public testing::TestWithParam<Crash> {};

TEST_P(CrashTest, AtEveryOperationOfASaveLeavesTheOldOrTheNewCheckpoint) {
  UnsyncedFiles whole;
  ASSERT_TRUE(save_sample(whole, kFolder, 1).ok());
  const int operations =
      operations_of(whole, [&] { EXPECT_TRUE(save_sample(whole, kFolder, 2).ok()); });
  ASSERT_GT(operations, 15);
  bool old_seen = false, new_seen = false;
  for (int stop = 1; stop <= operations + 1; ++stop) {
    SCOPED_TRACE(absl::StrCat("stopped at operation ", stop));
    UnsyncedFiles files;
    ASSERT_TRUE(save_sample(files, kFolder, 1).ok());
    files.restart();
    files.stop_at(stop);
    const bool saved = save_sample(files, kFolder, 2).ok();
    EXPECT_EQ(saved, stop == operations + 1);
    recover(files, GetParam());

    const std::vector<CheckpointEntry> entries = checkpoints_in(files);
    ASSERT_FALSE(entries.empty());
    EXPECT_EQ(entries.back().step, 1u);
    for (const CheckpointEntry& entry : entries) expect_sample(files, entry.path, entry.step);
    const bool is_new = entries.front().step == 2;
    (is_new ? new_seen : old_seen) = true;
    EXPECT_TRUE(is_new || !saved);

    // The same step can be saved again if it is not there, and the next one always.
    const absl::Status again = save_sample(files, kFolder, 2).status();
    EXPECT_EQ(error_code(again), is_new ? ErrorCode::kAlreadyExists : ErrorCode::kOk) << again;
    const auto next = save_sample(files, kFolder, 3);
    ASSERT_TRUE(next.ok()) << next.status();
    files.lose_power(UnsyncedFiles::Loss::kNamesAndBytes);
    expect_sample(files, *next, 3);
    EXPECT_EQ(checkpoints_in(files).size(), 3u);
  }
  EXPECT_TRUE(old_seen && new_seen);
}

TEST_P(CrashTest, AtEveryOperationOfTheFirstSaveLeavesNothingOrAWholeCheckpoint) {
  UnsyncedFiles whole;
  const int operations =
      operations_of(whole, [&] { EXPECT_TRUE(save_sample(whole, kFolder, 1).ok()); });
  for (int stop = 1; stop <= operations + 1; ++stop) {
    SCOPED_TRACE(absl::StrCat("stopped at operation ", stop));
    UnsyncedFiles files;
    files.stop_at(stop);
    const bool saved = save_sample(files, kFolder, 1).ok();
    recover(files, GetParam());
    const std::vector<CheckpointEntry> entries = checkpoints_in(files);
    for (const CheckpointEntry& entry : entries) expect_sample(files, entry.path, 1);
    EXPECT_TRUE(!saved || entries.size() == 1);
    const auto next = save_sample(files, kFolder, 3);
    ASSERT_TRUE(next.ok()) << next.status();
    files.lose_power(UnsyncedFiles::Loss::kNamesAndBytes);
    expect_sample(files, *next, 3);
  }
}

TEST_P(CrashTest, AtEveryOperationOfARemovalLeavesOnlyWholeCheckpoints) {
  UnsyncedFiles whole;
  ASSERT_TRUE(save_sample(whole, kFolder, 1).ok());
  ASSERT_TRUE(save_sample(whole, kFolder, 2).ok());
  const auto remove_oldest = [](Files& files) {
    return CheckpointDirectory(files, kFolder)
        .remove({absl::StrCat(kFolder, "/step-0000000001"), "step-0000000001", 1});
  };
  const int operations = operations_of(whole, [&] { EXPECT_TRUE(remove_oldest(whole).ok()); });
  EXPECT_EQ(value_or_throw(whole.list(kFolder)), (std::vector<std::string>{"step-0000000002"}));
  for (int stop = 1; stop <= operations; ++stop) {
    SCOPED_TRACE(absl::StrCat("stopped at operation ", stop));
    UnsyncedFiles files;
    ASSERT_TRUE(save_sample(files, kFolder, 1).ok());
    ASSERT_TRUE(save_sample(files, kFolder, 2).ok());
    files.restart();
    files.stop_at(stop);
    EXPECT_FALSE(remove_oldest(files).ok());
    recover(files, GetParam());
    const std::vector<CheckpointEntry> entries = checkpoints_in(files);
    ASSERT_FALSE(entries.empty());
    EXPECT_EQ(entries.front().step, 2u);
    for (const CheckpointEntry& entry : entries) expect_sample(files, entry.path, entry.step);
    ASSERT_TRUE(CheckpointDirectory(files, kFolder).remove_unfinished().ok());
    EXPECT_EQ(value_or_throw(files.list(kFolder)).size(), entries.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Crashes, CrashTest,
                         testing::Values(Crash::kKill, Crash::kLossOfBytes,
                                         Crash::kLossOfNamesAndBytes, Crash::kLossOfEarlierNames));

TEST(CheckpointDirectory, ReportsAnErrorAtEveryOperationAndSavesAgain) {
  UnsyncedFiles whole;
  const int operations =
      operations_of(whole, [&] { EXPECT_TRUE(save_sample(whole, kFolder, 1).ok()); });
  for (int fail = 1; fail <= operations; ++fail) {
    SCOPED_TRACE(absl::StrCat("failed at operation ", fail));
    UnsyncedFiles files;
    files.fail_at(fail, ErrorCode::kResourceExhausted);
    EXPECT_EQ(error_code(save_sample(files, kFolder, 1).status()), ErrorCode::kResourceExhausted);
    files.restart();
    const absl::Status again = save_sample(files, kFolder, 1).status();
    // Only the sync behind the rename fails with a whole checkpoint.
    EXPECT_TRUE(again.ok() || error_code(again) == ErrorCode::kAlreadyExists) << again;
    ASSERT_EQ(checkpoints_in(files).size(), 1u);
    expect_sample(files, checkpoints_in(files)[0].path, 1);
  }
}

TEST(CheckpointDirectory, LeavesFilesOfOthersAlone) {
  UnsyncedFiles files;
  ASSERT_TRUE(save_sample(files, kFolder, 1).ok());
  CheckpointDirectory directory(files, absl::StrCat(kFolder, "//"));
  ASSERT_TRUE(files.write_text(absl::StrCat(kFolder, "/notes.txt"), "mine").ok());
  ASSERT_TRUE(files.make_directory(absl::StrCat(kFolder, "/step-best")).ok());
  const std::string own = value_or_throw(directory.begin(2));
  const std::string leftover = value_or_throw(directory.begin(3));
  ASSERT_TRUE(files.write_text(leftover + "/ps-0-of-1.safetensors", "half").ok());
  ASSERT_TRUE(files.write_text(leftover + "/notes.txt", "mine").ok());
  ASSERT_TRUE(directory.remove_unfinished(own).ok());
  EXPECT_EQ(value_or_throw(files.list(kFolder)),
            (std::vector<std::string>{"notes.txt", "step-0000000001", "step-0000000002",
                                      "step-0000000003", "step-best"}));
  EXPECT_EQ(value_or_throw(files.list(leftover)), (std::vector<std::string>{"notes.txt"}));
  EXPECT_TRUE(directory.begin(3).ok());
}

TEST(CheckpointDirectory, DoesNotCommitAManifestThatContradictsItself) {
  UnsyncedFiles files;
  CheckpointDirectory directory(files, kFolder);
  const std::string folder = value_or_throw(directory.begin(1));
  Manifest manifest = value_or_throw(write_sample_files(files, folder, 1));
  manifest.variables[0].shards.pop_back();
  EXPECT_EQ(error_code(directory.commit(folder, manifest)), ErrorCode::kInternal);
  EXPECT_TRUE(checkpoints_in(files).empty());
}

TEST(CheckpointDirectory, DoesNotCommitWithoutAFileOrWithAShorterOne) {
  UnsyncedFiles files;
  CheckpointDirectory directory(files, kFolder);
  const std::string folder = value_or_throw(directory.begin(1));
  const Manifest manifest = value_or_throw(write_sample_files(files, folder, 1));
  const std::string path = join_path(folder, manifest.files[1].name);
  ASSERT_TRUE(files.remove(path).ok());
  const absl::Status absent = directory.commit(folder, manifest);
  EXPECT_EQ(error_code(absent), ErrorCode::kDataLoss);
  EXPECT_NE(absent.message().find(path), std::string::npos) << absent;
  ASSERT_TRUE(files.write_text(path, "half").ok());
  const absl::Status shorter = directory.commit(folder, manifest);
  EXPECT_EQ(error_code(shorter), ErrorCode::kDataLoss);
  EXPECT_NE(shorter.message().find("has 4 bytes"), std::string::npos) << shorter;
  EXPECT_TRUE(checkpoints_in(files).empty());
}

TEST(CheckpointDirectory, RemovesOneUnfinishedSave) {
  UnsyncedFiles files;
  const std::string committed = value_or_throw(save_sample(files, kFolder, 1));
  CheckpointDirectory directory(files, kFolder);
  const std::string own = value_or_throw(directory.begin(2));
  const std::string other = value_or_throw(directory.begin(3));
  ASSERT_TRUE(directory.remove_if_unfinished(own).ok());
  ASSERT_TRUE(directory.remove_if_unfinished(own).ok());
  ASSERT_TRUE(directory.remove_if_unfinished(committed).ok());
  EXPECT_EQ(value_or_throw(files.list(kFolder)),
            (std::vector<std::string>{"step-0000000001", "step-0000000003"}));
  expect_sample(files, committed, 1);
}

TEST(CheckpointName, IsReadBack) {
  EXPECT_EQ(checkpoint_name(42), "step-0000000042");
  for (const uint64_t step : {uint64_t{0}, uint64_t{42}, uint64_t{12'345'678'901}, UINT64_MAX}) {
    EXPECT_EQ(checkpoint_step(checkpoint_name(step)), step);
  }
  for (const char* name : {"", "step", "step-", "step-42", "step-000000004x", "step-+000000042",
                           "stop-0000000042", "step-00000000042", "step-99999999999999999999"}) {
    EXPECT_EQ(checkpoint_step(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace trireme::internal
