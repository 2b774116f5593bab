#include "trireme/base/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace trireme {
namespace {

// A folder with the files of a control group that the kernel would show.
class GroupFolder {
 public:
  GroupFolder(const std::string& limit, const std::string& current, const std::string& stat) {
    std::filesystem::create_directory(path_);
    std::ofstream(path_ / "memory.max") << limit;
    std::ofstream(path_ / "memory.current") << current;
    std::ofstream(path_ / "memory.stat") << stat;
  }
  ~GroupFolder() { std::filesystem::remove_all(path_); }

  std::optional<uint64_t> available() const { return internal::available_in_cgroup(path_); }

 private:
  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) / ("group" + std::to_string(getpid()));
};

// A container that has read its data set has filled its memory with pages of files.
TEST(Machine, PagesOfFilesDoNotCountAsTakenMemory) {
  const GroupFolder group("1000\n", "990\n",
                          "anon 200\nfile 790\ninactive_file 700\nactive_file 90\n");
  EXPECT_EQ(group.available(), 800u);
}

TEST(Machine, AFullGroupHasNoMemoryLeft) {
  const GroupFolder group("1000\n", "1200\n", "anon 1200\ninactive_file 0\nactive_file 0\n");
  EXPECT_EQ(group.available(), 0u);
}

TEST(Machine, AGroupWithoutALimitSaysNothing) {
  const GroupFolder group("max\n", "990\n", "anon 990\n");
  EXPECT_EQ(group.available(), std::nullopt);
}

}  // namespace
}  // namespace trireme
