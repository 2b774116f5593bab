#include "trireme/base/files.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "trireme/base/aligned_buffer.h"
#include "trireme/base/status.h"
#include "trireme/testing/unsynced_files.h"

namespace trireme {
namespace {

class LocalFilesTest : public testing::Test {
 protected:
  LocalFilesTest() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-files-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~LocalFilesTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return join_path(folder_, name); }

  Files& files_ = Files::local();
  std::string folder_;
};

AlignedBuffer pattern(size_t bytes) {
  AlignedBuffer buffer = value_or_throw(AlignedBuffer::make(bytes));
  for (size_t i = 0; i < buffer.size(); ++i) buffer.data()[i] = static_cast<char>(i * 31 >> 3);
  return buffer;
}

TEST(AlignedBufferTest, IsAlignedAndMovable) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{3} << 20}) {
    AlignedBuffer buffer = value_or_throw(AlignedBuffer::make(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kDirectBlock, 0u);
    EXPECT_EQ(buffer.size() % kDirectBlock, 0u);
    EXPECT_GE(buffer.size(), std::max<size_t>(bytes, 1));
    buffer.data()[buffer.size() - 1] = 7;
    AlignedBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.data()[moved.size() - 1], 7);
    EXPECT_EQ(buffer.data(), nullptr);  // NOLINT(bugprone-use-after-move): this is the contract.
  }
  EXPECT_EQ(error_code(AlignedBuffer::make(SIZE_MAX).status()), ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_code(AlignedBuffer::make(size_t{1} << 60).status()),
            ErrorCode::kResourceExhausted);
}

TEST_F(LocalFilesTest, WritesDirectAndUnalignedBytesIntoOneFile) {
  const AlignedBuffer data = pattern(20 * kDirectBlock);
  auto file = value_or_throw(files_.create(path("a")));
  // Direct, then unaligned in offset, in memory and in length, from two threads.
  std::thread other([&] {
    EXPECT_TRUE(
        file->write(16 * kDirectBlock, data.data() + 16 * kDirectBlock, 4 * kDirectBlock).ok());
  });
  EXPECT_TRUE(file->write(0, data.data(), 8 * kDirectBlock).ok());
  EXPECT_TRUE(file->write(8 * kDirectBlock, data.data() + 8 * kDirectBlock, 100).ok());
  EXPECT_TRUE(file->write(8 * kDirectBlock + 100, data.data() + 8 * kDirectBlock + 100,
                          8 * kDirectBlock - 100)
                  .ok());
  other.join();
  const size_t length = 20 * kDirectBlock - 1234;
  ASSERT_TRUE(file->finish(length).ok());
  EXPECT_EQ(*files_.size(path("a")), length);

  auto input = value_or_throw(files_.open(path("a")));
  ASSERT_EQ(input->size(), length);
  AlignedBuffer read = value_or_throw(AlignedBuffer::make(data.size()));
  ASSERT_TRUE(input->read(0, read.data(), 16 * kDirectBlock).ok());
  ASSERT_TRUE(
      input->read(16 * kDirectBlock, read.data() + 16 * kDirectBlock, length - 16 * kDirectBlock)
          .ok());
  EXPECT_EQ(std::memcmp(read.data(), data.data(), length), 0);
  std::string middle(5000, 0);
  ASSERT_TRUE(input->read(777, middle.data(), middle.size()).ok());
  EXPECT_EQ(std::memcmp(middle.data(), data.data() + 777, middle.size()), 0);
  // Reading beyond the end is an error, also with direct access.
  EXPECT_EQ(error_code(input->read(length - 10, middle.data(), 11)), ErrorCode::kDataLoss);
  EXPECT_EQ(error_code(input->read(16 * kDirectBlock, read.data(), 8 * kDirectBlock)),
            ErrorCode::kDataLoss);
}

TEST_F(LocalFilesTest, FinishExtendsAndShortens) {
  auto longer = value_or_throw(files_.create(path("longer")));
  ASSERT_TRUE(longer->write(0, "abc", 3).ok());
  ASSERT_TRUE(longer->finish(5).ok());
  EXPECT_EQ(value_or_throw(files_.read_text(path("longer"), 10)), std::string("abc\0\0", 5));
  auto shorter = value_or_throw(files_.create(path("shorter")));
  ASSERT_TRUE(shorter->write(0, "abc", 3).ok());
  ASSERT_TRUE(shorter->finish(1).ok());
  EXPECT_EQ(value_or_throw(files_.read_text(path("shorter"), 10)), "a");
}

TEST_F(LocalFilesTest, RejectsPathsThatExistAndPathsThatDoNot) {
  ASSERT_TRUE(files_.write_text(path("a"), "text").ok());
  const absl::Status again = files_.create(path("a")).status();
  EXPECT_EQ(error_code(again), ErrorCode::kAlreadyExists);
  EXPECT_NE(describe(again).find(path("a")), std::string::npos) << again;
  EXPECT_EQ(error_code(files_.make_directory(path("a"))), ErrorCode::kAlreadyExists);
  EXPECT_EQ(error_code(files_.open(path("b")).status()), ErrorCode::kNotFound);
  EXPECT_EQ(error_code(files_.create(path("b/c")).status()), ErrorCode::kNotFound);
  EXPECT_EQ(error_code(files_.list(path("b")).status()), ErrorCode::kNotFound);
  EXPECT_EQ(error_code(files_.remove(path("b"))), ErrorCode::kNotFound);
  EXPECT_EQ(error_code(files_.read_text(path("a"), 3).status()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_code(files_.open(folder_).status()), ErrorCode::kInvalidArgument);
}

TEST_F(LocalFilesTest, FollowsLinksOnlyIfAllowedAndDoesNotWaitForPipes) {
  ASSERT_TRUE(files_.write_text(path("a"), "text").ok());
  std::filesystem::create_symlink(path("a"), path("link"));
  EXPECT_EQ(value_or_throw(files_.read_text(path("link"), 10)), "text");
  EXPECT_EQ(error_code(files_.open(path("link"), Links::kReject).status()),
            ErrorCode::kPermissionDenied);
  EXPECT_EQ(error_code(files_.create(path("link")).status()), ErrorCode::kAlreadyExists);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_code(files_.open(path("pipe")).status()), ErrorCode::kInvalidArgument);
}

TEST_F(LocalFilesTest, MakesListsRenamesAndRemoves) {
  ASSERT_TRUE(files_.make_directories(path("x//y/z/")).ok());
  ASSERT_TRUE(files_.make_directories(path("x/y/z")).ok());
  ASSERT_TRUE(files_.write_text(path("x/y/b"), "1").ok());
  ASSERT_TRUE(files_.write_text(path("x/y/c"), "2").ok());
  ASSERT_TRUE(files_.rename(path("x/y/b"), path("x/y/c")).ok());
  ASSERT_TRUE(files_.sync_directory(path("x/y")).ok());
  EXPECT_EQ(value_or_throw(files_.list(path("x/y"))), (std::vector<std::string>{"c", "z"}));
  EXPECT_EQ(value_or_throw(files_.read_text(path("x/y/c"), 10)), "1");
  EXPECT_TRUE(*files_.exists(path("x/y/z")));
  EXPECT_FALSE(*files_.exists(path("x/y/c/d")));
  EXPECT_EQ(error_code(files_.remove_directory(path("x/y"))), ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(files_.remove(path("x/y/c")).ok());
  ASSERT_TRUE(files_.remove_directory(path("x/y/z")).ok());
  EXPECT_TRUE(files_.remove_directory(path("x/y")).ok());
  EXPECT_EQ(error_code(files_.make_directories("")), ErrorCode::kInvalidArgument);
}

TEST_F(LocalFilesTest, ReportsAFullDisk) {
  if (mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small file system needs a privilege";
  }
  const AlignedBuffer data = pattern(size_t{2} << 20);
  absl::Status status;
  {
    auto file = value_or_throw(files_.create(path("a")));
    status = file->write(0, data.data(), data.size());
  }
  umount(folder_.c_str());
  EXPECT_EQ(error_code(status), ErrorCode::kResourceExhausted) << status;
  EXPECT_NE(describe(status).find(path("a")), std::string::npos) << status;
}

TEST(UnsyncedFilesTest, LosesWhatWasNotSynced) {
  const auto prepare = [](UnsyncedFiles& files) {
    ASSERT_TRUE(files.make_directories("/d").ok());
    ASSERT_TRUE(files.write_text("/d/synced", "1").ok());
    ASSERT_TRUE(files.sync_directory("/d").ok());
    ASSERT_TRUE(files.write_text("/d/no_name", "2").ok());
    auto file = value_or_throw(files.create("/d/no_bytes"));
    ASSERT_TRUE(file->write(0, "3", 1).ok());
    files.restart();
    EXPECT_EQ(files.contents("/d/no_bytes"), "3");
  };
  UnsyncedFiles bytes;
  prepare(bytes);
  bytes.lose_power(UnsyncedFiles::Loss::kBytes);
  EXPECT_TRUE(*bytes.exists("/d/no_bytes"));
  EXPECT_EQ(bytes.contents("/d/no_bytes"), "");
  EXPECT_EQ(bytes.contents("/d/no_name"), "2");
  UnsyncedFiles names;
  prepare(names);
  names.lose_power(UnsyncedFiles::Loss::kNamesAndBytes);
  EXPECT_EQ(value_or_throw(names.list("/d")), (std::vector<std::string>{"synced"}));
  EXPECT_EQ(names.contents("/d/synced"), "1");
}

TEST(UnsyncedFilesTest, KeepsOnlyTheLastChangeOfNames) {
  UnsyncedFiles files;
  ASSERT_TRUE(files.write_text("old", "1").ok());
  ASSERT_TRUE(files.sync_directory("/").ok());
  ASSERT_TRUE(files.write_text("lost", "2").ok());
  ASSERT_TRUE(files.rename("old", "new").ok());
  files.lose_power(UnsyncedFiles::Loss::kEarlierNamesAndBytes);
  EXPECT_EQ(value_or_throw(files.list("/")), (std::vector<std::string>{"new"}));
  EXPECT_EQ(files.contents("new"), "1");
}

TEST(UnsyncedFilesTest, StopsAndFailsAtAnOperation) {
  UnsyncedFiles files;
  files.fail_at(2, ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_code(files.write_text("a", "12")), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(files.remove("a").ok());
  files.restart();
  files.stop_at(2);
  EXPECT_EQ(error_code(files.write_text("a", "12")), ErrorCode::kUnavailable);
  EXPECT_EQ(error_code(files.exists("a").status()), ErrorCode::kUnavailable);
  files.restart();
  EXPECT_EQ(files.contents("a"), "1");
}

TEST_F(LocalFilesTest, ResolvesPathsInsideOfAFolder) {
  namespace fs = std::filesystem;
  const std::string outer = fs::canonical(folder_).string(), inner = join_path(outer, "inner");
  fs::create_directories(join_path(inner, "deep"));
  fs::create_directory_symlink(outer, join_path(inner, "up"));
  fs::create_directory_symlink("deep", join_path(inner, "down"));
  const auto resolve = [&](const std::string& path) {
    return resolve_inside(join_path(inner, path), inner).value_or("outside");
  };
  EXPECT_EQ(resolve("deep/x"), inner + "/deep/x");
  EXPECT_EQ(resolve("down/x"), inner + "/deep/x");
  EXPECT_EQ(resolve("missing/../down/x"), inner + "/deep/x");
  for (const char* path : {"..", "../x", "up/x", "missing/../up/x", "missing/../../x"}) {
    EXPECT_EQ(resolve(path), "outside") << path;
  }
  EXPECT_EQ(resolve_inside(inner + "most/x", inner), std::nullopt);
  EXPECT_EQ(resolve_inside(inner, inner), inner);
}

}  // namespace
}  // namespace trireme
