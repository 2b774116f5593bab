#include "trireme/data/data_root.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// A root with the file "data.csv", and a file and links that lead out of it.
class DataRootTest : public testing::Test {
 protected:
  DataRootTest() {
    std::string name = testing::TempDir() + "/data_root_test-XXXXXX";
    folder_ = fs::canonical(mkdtemp(name.data())).string();
    root_ = folder_ + "/root";
    fs::create_directories(root_ + "/inside");
    std::ofstream(root_ + "/data.csv") << "1\n";
    std::ofstream(folder_ + "/secret.csv") << "2\n";
    fs::create_symlink(folder_ + "/secret.csv", root_ + "/link.csv");
    fs::create_directory_symlink(folder_, root_ + "/up");
    fs::create_symlink("data.csv", root_ + "/good.csv");
  }
  ~DataRootTest() override { fs::remove_all(folder_); }

  static proto::DatasetDef reading(const std::string& name) {
    proto::DatasetDef def;
    def.add_steps()->mutable_files()->add_names(name);
    return def;
  }
  // Returns the name that a file gets, or the error as text.
  std::string resolved(const std::string& name) const {
    proto::DatasetDef def = reading(name);
    const absl::Status status = resolve_files(def, root_);
    return status.ok() ? def.steps(0).files().names(0) : describe(status);
  }

  std::string folder_, root_;
};

TEST_F(DataRootTest, FilesInsideOfItGetTheirWholePath) {
  EXPECT_EQ(resolved("data.csv"), root_ + "/data.csv");
  EXPECT_EQ(resolved("inside/../data.csv"), root_ + "/data.csv");
  EXPECT_EQ(resolved(root_ + "/data.csv"), root_ + "/data.csv");
  EXPECT_EQ(resolved("good.csv"), root_ + "/data.csv");
  EXPECT_EQ(resolved("inside/missing.csv"), root_ + "/inside/missing.csv");
}

TEST_F(DataRootTest, FilesOutsideOfItAreRejected) {
  for (const std::string& name :
       {folder_ + "/secret.csv", std::string("../secret.csv"), std::string("link.csv"),
        std::string("up/secret.csv"), std::string("missing/../link.csv"),
        std::string("missing/../../secret.csv"), std::string("missing/../up/secret.csv"),
        root_ + "less/data.csv"}) {
    proto::DatasetDef def = reading(name);
    const absl::Status status = resolve_files(def, root_);
    EXPECT_EQ(error_code(status), ErrorCode::kPermissionDenied) << name << ": " << status;
    EXPECT_THAT(describe(status), AllOf(HasSubstr(root_), HasSubstr("--data-root"),
                                        HasSubstr("file '" + name + "'")));
  }
  EXPECT_THAT(resolved(""), HasSubstr("is empty or has a zero byte"));
  EXPECT_THAT(resolved(std::string("data.csv\0/../../secret.csv", 26)), HasSubstr("zero byte"));
}

TEST_F(DataRootTest, WithoutARootNoFileIsRead) {
  proto::DatasetDef def = reading(root_ + "/data.csv");
  const absl::Status status = resolve_files(def, "");
  EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition) << status;
  EXPECT_THAT(describe(status), HasSubstr("--data-root DIR"));
  proto::DatasetDef numbers;
  numbers.add_steps()->mutable_range()->set_end(5);
  EXPECT_TRUE(resolve_files(numbers, "").ok());
}

TEST_F(DataRootTest, ARootThatDoesNotExistIsNamed) {
  proto::DatasetDef def = reading("data.csv");
  const absl::Status status = resolve_files(def, folder_ + "/missing");
  EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition) << status;
  EXPECT_THAT(describe(status), HasSubstr(folder_ + "/missing"));
}

TEST_F(DataRootTest, DatasetsInsideOfOthersAreCheckedToo) {
  const proto::DatasetDef good = reading("data.csv"), bad = reading("../secret.csv");
  for (const bool zipped : {true, false}) {
    const auto joined = [&](const proto::DatasetDef& other) {
      proto::DatasetDef def = good;
      *(zipped ? def.add_steps()->mutable_zip()->add_others()
               : def.add_steps()->mutable_concatenate()->mutable_other()) = other;
      return def;
    };
    proto::DatasetDef hidden = joined(joined(bad)), open = joined(joined(good));
    EXPECT_EQ(error_code(resolve_files(hidden, root_)), ErrorCode::kPermissionDenied);
    ASSERT_TRUE(resolve_files(open, root_).ok());
    EXPECT_THAT(open.ShortDebugString(), testing::Not(HasSubstr("\"data.csv\"")));
  }
}

TEST_F(DataRootTest, TheRootOfAllFilesKeepsTheWorkingDirectory) {
  proto::DatasetDef def = reading("some/data.csv");
  ASSERT_TRUE(resolve_files(def, "/").ok());
  EXPECT_EQ(def.steps(0).files().names(0), fs::current_path().string() + "/some/data.csv");
  def = reading(folder_ + "/secret.csv");
  EXPECT_TRUE(resolve_files(def, "/").ok());
}

}  // namespace
}  // namespace trireme::internal
