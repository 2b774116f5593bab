// Tables that repeat figures of docs/benchmarks.md have the figures that stand there now. Pages for
// those who come from other frameworks have the names that their programs use, and name only what
// exists here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace trireme {
namespace {

// Returns the path of a file of the repository.
std::string path_of(const std::string& name) {
  const std::string source = TRAIN_SOURCE;
  return source.substr(0, source.rfind("examples/")) + name;
}

std::string text_of(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(path_of(name)).rdbuf();
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

INSTANTIATE_TEST_SUITE_P(All, Figures,
                         testing::Values("README.md", "docs/status.md", "docs/performance.md"),
                         [](const auto& info) {
                           return std::filesystem::path(info.param).stem().string();
                         });

TEST(ComingFromTensorFlow, HasTheNamesOfTheTutorialPrograms) {
  const std::string text = text_of("docs/coming_from_tensorflow.md");
  for (const char* name : {"SimpleClusterResolver",
                           "TFConfigClusterResolver",
                           "KubernetesClusterResolver",
                           "CommunicationImplementation",
                           "CollectiveCommunication",
                           "CommunicationOptions",
                           "AutoShardPolicy",
                           "get_strategy",
                           "PerWorkerValues",
                           "experimental_distribute_dataset",
                           "experimental_distribute_values_from_function",
                           "distribute_datasets_from_function",
                           "tf.distribute.Server",
                           "MinSizePartitioner",
                           "round_up_as_tensorflow",
                           "strategy.gather",
                           "strategy.reduce",
                           "strategy.run",
                           "replica_device_setter",
                           "tutorials/distribute/keras",
                           "tutorials/distribute/multi_worker_with_keras",
                           "tutorials/distribute/parameter_server_training",
                           "tutorials/distribute/custom_training",
                           "tutorials/distribute/input",
                           "tutorials/distribute/save_and_load",
                           "tutorials/distribute/multi_worker_with_estimator",
                           "CentralStorageStrategy"}) {
    EXPECT_THAT(text, testing::HasSubstr(name));
  }
}

// Returns the words of all headers.
std::set<std::string> words_of_headers() {
  static const std::regex word("[A-Za-z_][A-Za-z_0-9]*");
  std::set<std::string> words;
  for (const auto& file : std::filesystem::recursive_directory_iterator(path_of("trireme"))) {
    if (file.path().extension() != ".h") continue;
    std::ostringstream stream;
    stream << std::ifstream(file.path()).rdbuf();
    const std::string text = stream.str();
    for (std::sregex_iterator i(text.begin(), text.end(), word), end; i != end; ++i) {
      words.insert(i->str());
    }
  }
  return words;
}

TEST(ComingFromOtherFrameworks, NamesOnlyWhatExists) {
  const std::set<std::string> words = words_of_headers();
  static const std::regex ours("tr::([A-Za-z_]+)|`(k[A-Z][A-Za-z]+)`");
  for (const char* page : {"docs/coming_from_tensorflow.md", "docs/coming_from_pytorch.md"}) {
    const std::string text = text_of(page);
    int count = 0;
    for (std::sregex_iterator i(text.begin(), text.end(), ours), end; i != end; ++i, ++count) {
      const std::string name = (*i)[1].matched ? (*i)[1].str() : (*i)[2].str();
      EXPECT_THAT(words, testing::Contains(name)) << page;
    }
    EXPECT_GE(count, 20) << page;
  }
}

}  // namespace
}  // namespace trireme
