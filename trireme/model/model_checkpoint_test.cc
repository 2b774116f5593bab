#include "trireme/model/model_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "trireme/model/checkpoint_path.h"
#include "trireme/model/model.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using internal::format_checkpoint_path;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CheckpointPath, ReplacesNamesInBraces) {
  Logs logs;
  logs.set("loss", 0.5);
  logs.set("val_loss", 1.23456);
  const auto path = [&](const std::string& pattern) {
    return format_checkpoint_path(pattern, 7, logs);
  };
  EXPECT_EQ(path("plain.safetensors"), "plain.safetensors");
  EXPECT_EQ(path("a/{epoch}"), "a/7");
  EXPECT_EQ(path("{epoch:02}-{val_loss:.2f}.x"), "07-1.23.x");
  EXPECT_EQ(path("{epoch:03d}{loss}"), "0070.5");
  EXPECT_EQ(path("{epoch:4}|{loss:8.3f}|{loss:.1e}"), "   7|   0.500|5.0e-01");
}

TEST(CheckpointPath, RejectsNamesAndFormatsThatDoNotExist) {
  Logs logs;
  logs.set("loss", 0.5);
  const auto error = [&](const std::string& pattern) {
    return error_text([&] { format_checkpoint_path(pattern, 1, logs); });
  };
  EXPECT_THAT(error("{val_loss}"), HasSubstr("the path '{val_loss}' of a ModelCheckpoint has the "
                                             "name 'val_loss'; the names are epoch, loss"));
  for (const char* pattern : {"{epoch:s}", "{epoch:.2}", "{loss:n}", "{loss:.}", "{loss:1234f}",
                              "{loss:*f}", "{loss:.2f%n}"}) {
    EXPECT_THAT(error(pattern), HasSubstr("has the format")) << pattern;
  }
  EXPECT_THAT(error("{epoch"), HasSubstr("'{' without a '}'"));
  EXPECT_THAT(error("epoch}"), HasSubstr("'}' without a '{'"));
}

// Sets a figure of each epoch.
AnyCallback figures_of_epochs(std::vector<double> values) {
  class Figures : public Callback {
   public:
    explicit Figures(std::vector<double> values) : values_(std::move(values)) {}
    void on_epoch_end(Fit& fit, Logs& logs) override {
      logs.set("figure_loss", values_.at(fit.epoch()));
      logs.set("figure_acc", values_.at(fit.epoch()));
    }

   private:
    std::vector<double> values_;
  };
  return Figures(std::move(values));
}

// Trains a line, one epoch for each value, and returns the names of the files in the folder.
std::vector<std::string> files_of_fit(const std::string& folder, const std::vector<double>& values,
                                      const AnyCallback& checkpoint) {
  Model model(torch::nn::Linear(2, 1));
  model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = torch::nn::MSELoss()});
  model.fit(torch::ones({4, 2}), torch::ones({4, 1}),
            {.epochs = static_cast<int64_t>(values.size()),
             .callbacks = {figures_of_epochs(values), checkpoint},
             .verbose = Verbose::kSilent});
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(ModelCheckpoint, WritesTheWeightsOfEachEpoch) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a/b";
  EXPECT_THAT(
      files_of_fit(path, {1, 2, 3, 4}, ModelCheckpoint(path + "/{epoch:02}-{figure_loss:.1f}")),
      ElementsAre("01-1.0", "02-2.0", "03-3.0", "04-4.0"));
  EXPECT_THAT(files_of_fit(folder.path() + "/a/b", {1, 2, 3, 4},
                           ModelCheckpoint(path + "/x{epoch}", {.save_freq = 2})),
              testing::IsSupersetOf({"x2", "x4"}));
  EXPECT_FALSE(std::filesystem::exists(path + "/x1"));
  Model model(torch::nn::Linear(2, 1));
  EXPECT_TRUE(model.load(path + "/01-1.0").empty());
}

TEST(ModelCheckpoint, WritesOnlyWhatIsBetterThanAllBefore) {
  const std::vector<double> values = {3, NAN, 4, 2, 2, 5};
  const auto files = [&](ModelCheckpointOptions options) {
    const TemporaryFolder folder;
    options.save_best_only = true;
    return files_of_fit(folder.path(), values,
                        ModelCheckpoint(folder.path() + "/{epoch}", options));
  };
  EXPECT_THAT(files({.monitor = "figure_loss"}), ElementsAre("1", "4"));
  EXPECT_THAT(files({.monitor = "figure_loss", .mode = MonitorMode::kMax}),
              ElementsAre("1", "3", "6"));
  EXPECT_THAT(files({.monitor = "figure_acc"}), ElementsAre("1", "3", "6"));
  EXPECT_THAT(files({.monitor = "figure_acc", .mode = MonitorMode::kMin}), ElementsAre("1", "4"));
  EXPECT_THAT(files({.monitor = "figure_loss", .initial_value_threshold = 2.5}), ElementsAre("4"));
  EXPECT_THAT(files({}), ElementsAre());  // without validation
  EXPECT_THAT(error_text([&] { files({.monitor = "figure"}); }), HasSubstr("set the option mode"));
}

TEST(ModelCheckpoint, KeepsTheBestFigureInItsState) {
  ModelCheckpoint first("x", {.save_best_only = true, .initial_value_threshold = 0.1});
  ModelCheckpoint second("x", {.save_best_only = true});
  EXPECT_EQ(second.save(), "");
  second.restore(first.save());
  EXPECT_EQ(second.best(), 0.1);
  second.restore("");
  EXPECT_EQ(second.best(), std::nullopt);
  EXPECT_THAT(error_text([&] { second.restore("0.1x"); }),
              HasSubstr("'0.1x' is not a valid state"));
  EXPECT_THAT(error_text([] { ModelCheckpoint("x", {.save_freq = 0}); }), HasSubstr("save_freq"));
}

}  // namespace
}  // namespace trireme
