#include "trireme/model/tensorboard.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/model/test_fit.h"
#include "trireme/observe/event.pb.h"
#include "trireme/observe/event_file.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"

namespace trireme::internal {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class TensorBoardTest : public testing::Test {
 protected:
  // Returns the values of all event files of a run, in the order of the files and records.
  std::vector<std::pair<int64_t, proto::EventSummary::Value>> values(const std::string& run) {
    std::vector<std::pair<int64_t, proto::EventSummary::Value>> result;
    const std::string folder = join_path(logs_, run);
    if (!std::filesystem::exists(folder)) return result;
    std::vector<std::string> names = value_or_throw(Files::local().list(folder));
    // The count at the end of a name may have one more digit.
    std::stable_sort(names.begin(), names.end(),
                     [](const auto& one, const auto& other) { return one.size() < other.size(); });
    for (const std::string& name : names) {
      const std::string bytes =
          value_or_throw(Files::local().read_text(join_path(folder, name), 1 << 20));
      for (size_t offset = 0; offset < bytes.size();) {
        uint64_t length = 0;
        std::memcpy(&length, bytes.data() + offset, sizeof(length));
        proto::Event event;
        EXPECT_TRUE(event.ParseFromString(bytes.substr(offset + 12, length)));
        offset += length + 16;
        for (const auto& value : event.summary().value()) result.emplace_back(event.step(), value);
      }
    }
    return result;
  }
  // Returns the figures of a run: "epoch_loss 0 0.5".
  std::vector<std::string> figures(const std::string& run) {
    std::vector<std::string> result;
    for (const auto& [step, value] : values(run)) {
      if (value.has_simple_value()) {
        result.push_back(absl::StrFormat("%s %d %g", value.tag(), step, value.simple_value()));
      }
    }
    return result;
  }

  void end_epoch(Callback& callback, TestFit& test, int64_t epoch) {
    Fit fit = test.at({.epoch = epoch, .epochs = 5, .step = 20 * (epoch + 1)});
    Logs logs = make_logs({{"loss", 0.5 + static_cast<double>(epoch)}});
    callback.on_epoch_end(fit, logs);
  }

  TemporaryFolder folder_;
  const std::string logs_ = join_path(folder_.path(), "logs");
};

TEST_F(TensorBoardTest, WritesTheFiguresOfTrainingAndValidation) {
  TestFit test;
  TensorBoard board(logs_);
  Fit fit = test.at({.epoch = 3, .step = 80});
  Logs logs = make_logs({{"loss", 0.5}, {"accuracy", 0.75}, {"val_loss", 2}, {"val_accuracy", 0}});
  board.on_epoch_begin(fit);
  board.on_batch_end(fit, logs);
  EXPECT_FALSE(std::filesystem::exists(logs_));
  board.on_epoch_end(fit, logs);
  EXPECT_THAT(figures("train"), ElementsAre("epoch_loss 3 0.5", "epoch_accuracy 3 0.75",
                                            "epoch_learning_rate 3 0.25"));
  EXPECT_THAT(figures("validation"), ElementsAre("epoch_loss 3 2", "epoch_accuracy 3 0"));
}

TEST_F(TensorBoardTest, KeepsTheRateThatACallbackHasLogged) {
  TestFit test;
  TensorBoard board(logs_);
  Fit fit = test.at({});
  Logs logs = make_logs({{"learning_rate", 0.125}});
  board.on_epoch_end(fit, logs);
  EXPECT_THAT(figures("train"), ElementsAre("epoch_learning_rate 0 0.125"));
}

TEST_F(TensorBoardTest, WritesFiguresOfBatchesWhenAMultipleIsPassed) {
  TestFit test;
  TensorBoard board(logs_, {.update_freq = 4});
  Fit fit = test.at({});
  board.on_epoch_begin(fit);
  for (int64_t step = 3; step <= 12; step += 3) {  // Three steps for each execution.
    fit = test.at({.step = step});
    board.on_batch_end(fit, make_logs({{"loss", static_cast<double>(step)}}));
    board.on_batch_end(fit, {});
  }
  board.on_train_end(fit, {});
  EXPECT_THAT(figures("train"),
              ElementsAre("batch_loss 6 6", "batch_loss 9 9", "batch_loss 12 12"));
}

TEST_F(TensorBoardTest, WritesHistogramsOfVariables) {
  const at::Tensor weight = at::arange(0, 60, at::kFloat).reshape({6, 10});
  at::Tensor bias = at::full({5}, 2.0);
  bias[1] = NAN;
  const at::Tensor none = at::full({2}, INFINITY);
  TestFit test({Variable("board_fc.weight", weight), Variable("board_fc.bias", bias),
                Variable("board_none", none), Variable("board_count", at::full({}, 3, at::kLong))});
  TensorBoard board(logs_, {.histogram_freq = 2});
  for (int64_t epoch = 0; epoch < 3; ++epoch) end_epoch(board, test, epoch);
  std::vector<std::string> tags;
  std::vector<HistogramBucket> buckets(30);
  for (const auto& [step, value] : values("train")) {
    if (!value.has_tensor()) continue;
    tags.push_back(absl::StrCat(value.tag(), " ", step));
    ASSERT_EQ(value.tensor().tensor_content().size(), 30 * sizeof(HistogramBucket));
    std::memcpy(buckets.data(), value.tensor().tensor_content().data(),
                30 * sizeof(HistogramBucket));
    if (value.tag() == "board_fc/weight/histogram") {
      EXPECT_EQ(buckets[0].left, 0);
      EXPECT_EQ(buckets[29].right, 59);
      for (size_t i = 0; i < 30; ++i) EXPECT_EQ(buckets[i].count, 2) << i;
      for (size_t i = 1; i < 30; ++i) EXPECT_EQ(buckets[i].left, buckets[i - 1].right) << i;
    } else if (value.tag() == "board_fc/bias/histogram") {
      EXPECT_EQ(buckets[29], (HistogramBucket{2, 2, 4}));
      EXPECT_EQ(buckets[0], (HistogramBucket{2, 2, 0}));
    }
  }
  EXPECT_THAT(tags, ElementsAre("board_fc/weight/histogram 0", "board_fc/bias/histogram 0",
                                "board_count/histogram 0", "board_fc/weight/histogram 2",
                                "board_fc/bias/histogram 2", "board_count/histogram 2"));
}

TEST_F(TensorBoardTest, WritesTextsOnce) {
  TestFit test;
  TensorBoard board(logs_, {.text = {{"notes", "**bold**"}}});
  Fit fit = test.at({});
  board.on_epoch_begin(fit);
  board.on_epoch_begin(fit);
  const std::string state = board.save();
  TensorBoard resumed(logs_, {.text = {{"notes", "**bold**"}}});
  resumed.restore(state);
  resumed.on_epoch_begin(fit);
  resumed.on_train_end(fit, {});
  ASSERT_EQ(values("train").size(), 1u);
  EXPECT_EQ(values("train")[0].second.tensor().string_val(0), "**bold**");
}

// Each process that continues the fit begins at a checkpoint, and dies later.
TEST_F(TensorBoardTest, WritesAnEpochOnceIfAFitIsResumed) {
  TestFit test;
  const auto epochs = [&] {
    std::vector<int64_t> result;
    for (const auto& [step, value] : values("train")) {
      if (value.tag() == "epoch_loss") result.push_back(step);
    }
    return result;
  };
  TensorBoard other(logs_);  // The run of another program in the same folder is left alone.
  end_epoch(other, test, 7);
  TensorBoard first(logs_);
  for (int64_t epoch = 0; epoch < 2; ++epoch) end_epoch(first, test, epoch);
  const std::string state = first.save();
  for (int64_t epoch = 2; epoch < 4; ++epoch) end_epoch(first, test, epoch);
  EXPECT_THAT(epochs(), ElementsAre(7, 0, 1, 2, 3));

  TensorBoard second(logs_);
  second.restore(state);
  EXPECT_THAT(epochs(), ElementsAre(7, 0, 1));
  end_epoch(second, test, 2);
  TensorBoard third(logs_);
  third.restore(state);
  EXPECT_THAT(epochs(), ElementsAre(7, 0, 1));
  end_epoch(third, test, 2);
  third.restore(third.save());
  end_epoch(third, test, 3);
  EXPECT_THAT(epochs(), ElementsAre(7, 0, 1, 2, 3));
}

TEST_F(TensorBoardTest, RejectsAMalformedStateAndNegativeOptions) {
  TensorBoard board(logs_);
  EXPECT_EQ(error_of([&] { board.restore("{}"); }).code(), ErrorCode::kDataLoss);
  EXPECT_THAT(error_text([&] { TensorBoard(logs_, {.update_freq = -1}); }),
              HasSubstr("update_freq is -1"));
}

TEST_F(TensorBoardTest, NamesAFolderThatCannotBeMade) {
  throw_if_error(Files::local().write_text(logs_, "not a folder"));
  TestFit test;
  TensorBoard board(logs_);
  EXPECT_THAT(error_text([&] { end_epoch(board, test, 0); }), HasSubstr(logs_));
}

}  // namespace
}  // namespace trireme::internal
