// Tables that repeat figures of docs/benchmarks.md have the figures that stand there now.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace trireme {
namespace {

std::string text_of(const std::string& name) {
  const std::string source = TRAIN_SOURCE;
  std::ostringstream text;
  text << std::ifstream(source.substr(0, source.rfind("examples/")) + name).rdbuf();
  return text.str();
}

// Returns the speeds and the decimal numbers of a text, such as "27,200/s" and "1.41".
std::set<std::string> figures_of(const std::string& text) {
  static const std::regex figure(
      "[0-9][0-9,]*([.][0-9]+)?(/s| steps/s| GB/s| MB/s)|[0-9]+[.][0-9]+");
  std::set<std::string> figures;
  for (std::sregex_iterator i(text.begin(), text.end(), figure), end; i != end; ++i) {
    figures.insert(i->str());
  }
  return figures;
}

class Figures : public testing::TestWithParam<std::string> {};

TEST_P(Figures, AreThoseOfTheBenchmarks) {
  const std::string mark = "<!-- figures of docs/benchmarks.md -->\n\n";
  const std::string text = text_of(GetParam());
  const size_t begin = text.find(mark);
  ASSERT_NE(begin, std::string::npos);
  const std::set<std::string> shown =
      figures_of(text.substr(begin, text.find("\n\n", begin + mark.size()) - begin));
  EXPECT_GE(shown.size(), 4u);
  const std::set<std::string> measured = figures_of(text_of("docs/benchmarks.md"));
  for (const std::string& figure : shown) EXPECT_THAT(measured, testing::Contains(figure));
}

INSTANTIATE_TEST_SUITE_P(All, Figures, testing::Values("docs/status.md", "docs/performance.md"),
                         [](const auto& info) {
                           return info.param.substr(5, info.param.size() - 8);
                         });

}  // namespace
}  // namespace trireme
