#include "trireme/base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

namespace trireme {
namespace {

// A folder with the files of a control group that the kernel would show.
class GroupFolder {
 public:
  explicit GroupFolder(const std::map<std::string, std::string>& files) {
    std::filesystem::create_directory(path_);
    for (const auto& [name, text] : files) std::ofstream(path_ / name) << text;
  }
  ~GroupFolder() { std::filesystem::remove_all(path_); }

  std::optional<uint64_t> available() const { return internal::available_in_cgroup(path_); }
  std::optional<int> cores() const { return internal::cores_in_cgroup(path_); }

 private:
  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) / ("group" + std::to_string(getpid()));
};

// A container that has read its data set has filled its memory with pages of files.
TEST(Machine, PagesOfFilesDoNotCountAsTakenMemory) {
  const GroupFolder group(
      {{"memory.max", "1000\n"},
       {"memory.current", "990\n"},
       {"memory.stat", "anon 200\nfile 790\ninactive_file 700\nactive_file 90\n"}});
  EXPECT_EQ(group.available(), 800u);
}

TEST(Machine, AFullGroupHasNoMemoryLeft) {
  const GroupFolder group({{"memory.max", "1000\n"},
                           {"memory.current", "1200\n"},
                           {"memory.stat", "anon 1200\ninactive_file 0\nactive_file 0\n"}});
  EXPECT_EQ(group.available(), 0u);
}

TEST(Machine, AGroupWithoutALimitSaysNothing) {
  const GroupFolder group({{"memory.max", "max\n"},
                           {"memory.current", "990\n"},
                           {"memory.stat", "anon 990\n"},
                           {"cpu.max", "max 100000\n"}});
  EXPECT_EQ(group.available(), std::nullopt);
  EXPECT_EQ(group.cores(), std::nullopt);
}

TEST(Machine, TheQuotaOfAGroupIsRoundedDownToWholeCores) {
  EXPECT_EQ(GroupFolder({{"cpu.max", "350000 100000\n"}}).cores(), 3);
  EXPECT_EQ(GroupFolder({{"cpu.max", "50000 100000\n"}}).cores(), 0);
}

TEST(Machine, UsesOnlyTheCoresThatTheProcessMayRunOn) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_LE(usable_cores(), CPU_COUNT(&all));
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

}  // namespace
}  // namespace trireme
