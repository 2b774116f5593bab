// Runs the tests of a binary: all of them, those that match --gtest_filter, or with
// --file=x_test.cc the tests of one source.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#ifdef TRIREME_STAND_IN
#include "tests/stand_in_devices.h"
#endif

namespace {

// Returns a gtest filter that matches the tests of the source file `source`.
std::string filter_for(std::string_view source) {
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const testing::TestInfo& test = *suite.GetTestInfo(k);
      if (std::filesystem::path(test.file()).filename() != source) continue;
      filter += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
#ifdef TRIREME_STAND_IN
  trireme::register_stand_in_of_environment();
#endif
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kFlag = "--file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kFlag)) continue;
    const std::string filter = filter_for(argument.substr(kFlag.size()));
    if (filter.empty()) {
      std::fprintf(stderr, "%s has no test from %s\n", argv[0], argv[i] + kFlag.size());
      return 2;
    }
    // A filter that only excludes tests, "-Suite.Test", holds within the file.
    const std::string given = GTEST_FLAG_GET(filter);
    GTEST_FLAG_SET(filter, given.starts_with('-') ? filter + given : filter);
  }
  return RUN_ALL_TESTS();
}
