#include "trireme/rpc/shared_segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "trireme/base/machine.h"
#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"

namespace trireme {
namespace {

using testing::HasSubstr;

constexpr char kSegmentVariable[] = "TRIREME_TEST_SEGMENT";
constexpr int kBootField = 1, kPidField = 2, kFileField = 3, kSizeField = 4, kCookieField = 6;

std::shared_ptr<SharedSegment> create_segment(uint64_t bytes) {
  return value_or_throw(SharedSegment::create(bytes));
}

// Returns the handle with another text in one of its fields.
std::string with_field(const std::string& handle, int field, const std::string& text) {
  std::vector<std::string> fields = absl::StrSplit(handle, ' ');
  fields.at(field) = text;
  return absl::StrJoin(fields, " ");
}

void expect_rejected(const std::string& handle, ErrorCode code, const std::string& why) {
  const auto opened = SharedSegment::open(handle);
  ASSERT_FALSE(opened.ok()) << handle;
  EXPECT_EQ(error_code(opened.status()), code) << opened.status();
  EXPECT_THAT(describe(opened.status()), HasSubstr(why));
}

// Opens the segment of the test below, in a process of its own.
void answer_parent(const std::string& handle) {
  const auto segment = value_or_throw(SharedSegment::open(handle));
  ASSERT_STREQ(reinterpret_cast<const char*>(segment->data()), "question");
  ASSERT_EQ(segment->size(), 10'000u);
  std::strcpy(reinterpret_cast<char*>(segment->data()) + 5000, "answer");
}

TEST(SharedSegment, IsOpenedByAnotherProcess) {
  if (const char* handle = std::getenv(kSegmentVariable)) return answer_parent(handle);
  const auto segment = create_segment(10'000);
  std::strcpy(reinterpret_cast<char*>(segment->data()), "question");
  const auto child =
      value_or_throw(run_process({.argv = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                           "--gtest_filter=SharedSegment.IsOpenedByAnotherProcess"},
                                  .environment = {{kSegmentVariable, segment->handle()}}},
                                 after(std::chrono::seconds(60))));
  EXPECT_TRUE(child.status.ok()) << child.stdout_text;
  EXPECT_STREQ(reinterpret_cast<const char*>(segment->data()) + 5000, "answer");
}

TEST(SharedSegment, IsTheSameMemoryForAllAndOutlivesItsCreator) {
  auto segment = create_segment(1);
  const auto first = value_or_throw(SharedSegment::open(segment->handle()));
  const auto second = value_or_throw(SharedSegment::open(segment->handle()));
  EXPECT_EQ(first->handle(), segment->handle());
  EXPECT_LT(segment->handle().size(), SharedSegment::kMaxHandle);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first->data()) % 4096, 0u);
  EXPECT_EQ(first->data()[0], std::byte{0});
  segment->data()[0] = std::byte{1};
  EXPECT_EQ(first->data()[0], std::byte{1});
  segment.reset();
  first->data()[0] = std::byte{2};
  EXPECT_EQ(second->data()[0], std::byte{2});
}

TEST(SharedSegment, CannotBeOpenedOnceItsCreatorHasClosedIt) {
  auto segment = create_segment(100);
  const std::string handle = segment->handle();
  segment.reset();
  expect_rejected(handle, ErrorCode::kNotFound, "has ended or has closed it");
}

TEST(SharedSegment, CannotBeOpenedOnAnotherMachine) {
  const auto segment = create_segment(100);
  expect_rejected(with_field(segment->handle(), kBootField, "0123-4567"), ErrorCode::kNotFound,
                  "on another machine (boot id 0123-4567, here " + boot_id());
}

TEST(SharedSegment, CannotBeOpenedWithTheNumbersOfAnotherProcessOrFile) {
  const auto segment = create_segment(100), other = create_segment(100);
  const std::vector<std::string> fields = absl::StrSplit(other->handle(), ' ');
  expect_rejected(with_field(segment->handle(), kFileField, fields[kFileField]),
                  ErrorCode::kNotFound, "another segment has its place");
  expect_rejected(with_field(segment->handle(), kCookieField, "123"), ErrorCode::kNotFound,
                  "another segment has its place");
  // No process has this number.
  expect_rejected(with_field(segment->handle(), kPidField, "4194305"), ErrorCode::kNotFound,
                  "process 4194305");
  int ends[2];  // A pipe, which would block its opener.
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  expect_rejected(with_field(segment->handle(), kFileField, absl::StrCat(ends[0])),
                  ErrorCode::kNotFound, "is not a shared segment");
  close(ends[0]);
  close(ends[1]);
}

TEST(SharedSegment, RejectsADeclaredSizeThatIsNotThatOfTheFile) {
  const auto segment = create_segment(100'000);
  for (const char* size :
       {"0", "1", "90000", "110000", "18446744073709551615", "140737488355329"}) {
    expect_rejected(with_field(segment->handle(), kSizeField, size), ErrorCode::kNotFound,
                    absl::StrCat("declares ", size, " bytes"));
  }
}

TEST(SharedSegment, RejectsAFileThatCanBeCut) {
  const auto segment = create_segment(100);
  const int file = memfd_create("trireme", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 8192), 0);
  ASSERT_EQ(pwrite(file, segment->data() - 4096, 16, 0), 16);  // the right cookie
  const std::string handle = with_field(segment->handle(), kFileField, absl::StrCat(file));
  expect_rejected(handle, ErrorCode::kUnavailable, "its length can still change");
  ASSERT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  expect_rejected(handle, ErrorCode::kUnavailable, "its memory is not reserved");
  ASSERT_EQ(posix_fallocate(file, 0, 8192), 0);
  EXPECT_TRUE(SharedSegment::open(handle).ok());
  close(file);
}

// The pages of such a file can be removed in spite of its seals.
TEST(SharedSegment, RejectsAFileOfHugePages) {
  const uint64_t bytes = (2 << 20) - 4096;  // with the header one huge page
  const int file = memfd_create("trireme", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (file < 0) GTEST_SKIP() << "this system has no huge pages: " << std::strerror(errno);
  ASSERT_EQ(ftruncate(file, 2 << 20), 0);
  ASSERT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const auto segment = create_segment(bytes);
  expect_rejected(with_field(segment->handle(), kFileField, absl::StrCat(file)),
                  ErrorCode::kUnavailable, "not of the type that Trireme creates");
  close(file);
}

// Root may open the files of all users.
TEST(SharedSegment, RejectsAFileOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const auto segment = create_segment(100);
  const std::vector<std::string> fields = absl::StrSplit(segment->handle(), ' ');
  ASSERT_EQ(fchown(std::stoi(fields[kFileField]), 4711, -1), 0);
  expect_rejected(segment->handle(), ErrorCode::kUnavailable, "belongs to user 4711");
}

TEST(SharedSegment, RejectsTextThatIsNotAHandle) {
  const std::string handle = create_segment(100)->handle();
  for (const std::string& text :
       {std::string(), std::string("memfd"), handle + " 1", std::string(100'000, 'x'),
        with_field(handle, kPidField, "-1"), with_field(handle, kFileField, "-1"),
        with_field(handle, kSizeField, "-1"), with_field(handle, kPidField, "../1")}) {
    expect_rejected(text, ErrorCode::kInvalidArgument, "is not a handle");
  }
}

TEST(SharedSegment, ReportsALackOfMemory) {
  EXPECT_EQ(error_code(SharedSegment::create(0).status()), ErrorCode::kInvalidArgument);
  // Less than all memory is available, and taking it would end other processes.
  ASSERT_LT(available_memory(), physical_memory());
  EXPECT_GT(available_memory(), 0u);
  EXPECT_THAT(describe(SharedSegment::create(physical_memory()).status()),
              HasSubstr("bytes are available; free memory or share less"));
  for (const uint64_t bytes : {uint64_t{1} << 45, uint64_t{1} << 62, ~uint64_t{0}}) {
    const absl::Status status = SharedSegment::create(bytes).status();
    EXPECT_EQ(error_code(status), ErrorCode::kResourceExhausted) << status;
    EXPECT_THAT(describe(status), HasSubstr(absl::StrCat(bytes, " bytes cannot be created")));
  }
}

}  // namespace
}  // namespace trireme
