#include "trireme/model/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "trireme/model/test_fit.h"
#include "trireme/testing/manual_clock.h"
#include "trireme/testing/read_back.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ProgressTest : public testing::Test {
 protected:
  void open_terminal(int columns) { output_.emplace(columns); }
  void open_pipe() { output_.emplace(ReadBack::kPipe); }
  std::FILE* file() const { return output_->file(); }
  std::string shown() { return output_->text(); }

  // Prints one epoch of two executions of ten steps, with a validation.
  void print_epoch(ProgressPrinter& printer, TestFit& test) {
    FitPlace place{.epochs = 5, .steps_per_epoch = 20};
    Fit fit = test.at(place);
    printer.on_train_begin(fit);
    printer.on_epoch_begin(fit);
    clock_.advance(milliseconds(1500));
    place.step_of_epoch = 10;
    fit = test.at(place);
    printer.on_batch_end(fit, make_logs({{"loss", 0.5}}));
    clock_.advance(milliseconds(30));
    place.step_of_epoch = 20;
    fit = test.at(place);
    printer.on_batch_end(fit, make_logs({{"loss", 0.4735}, {"accuracy", 0.912}}));
    printer.on_validation_begin(fit);
    clock_.advance(milliseconds(500));
    Logs logs = make_logs({{"loss", 0.4735}, {"accuracy", 0.912}, {"val_loss", 0.00049}});
    printer.on_epoch_end(fit, logs);
    printer.on_train_end(fit, logs);
  }

  ManualClock clock_;
  std::optional<ReadBack> output_;
};

TEST_F(ProgressTest, PrintsOneLineForAnEpoch) {
  open_pipe();
  TestFit test;
  ProgressPrinter printer(Verbose::kLines, file(), clock_);
  print_epoch(printer, test);
  EXPECT_EQ(shown(),
            "Epoch 1/5\n"
            "20/20 - 2s - loss: 0.4735 - accuracy: 0.9120 - val_loss: 4.9000e-04 - 2s/epoch - "
            "3ms/step\n");
}

TEST_F(ProgressTest, CountsAllStepsThatRunElsewhere) {
  open_pipe();
  TestFit test({}, /*runs_here=*/false);
  ProgressPrinter printer(Verbose::kAuto, file(), clock_);
  print_epoch(printer, test);
  EXPECT_THAT(shown(), EndsWith(" - 2s/epoch - 76ms/step\n"));
}

TEST_F(ProgressTest, PrintsNothingIfSilent) {
  open_pipe();
  TestFit test;
  ProgressPrinter printer(Verbose::kSilent, file(), clock_);
  print_epoch(printer, test);
  EXPECT_EQ(shown(), "");
}

TEST_F(ProgressTest, ShowsABarOnATerminal) {
  open_terminal(100);
  TestFit test;
  ProgressPrinter printer(Verbose::kAuto, file(), clock_);
  print_epoch(printer, test);
  EXPECT_EQ(shown(),
            "Epoch 1/5\r\n"
            "\r\x1b[K10/20 ━━━━━━━━━━────────── 1s 150ms/step - loss: 0.5000"
            "\r\x1b[K20/20 ━━━━━━━━━━━━━━━━━━━━ 2s 3ms/step - loss: 0.4735 - accuracy: 0.9120 - "
            "val_loss: 4.9000e-04\r\n");
}

TEST_F(ProgressTest, ShowsOnlyTheLastStateOfABarInAFile) {
  open_pipe();
  TestFit test;
  ProgressPrinter printer(Verbose::kBar, file(), clock_);
  print_epoch(printer, test);
  EXPECT_EQ(shown(),
            "Epoch 1/5\n20/20 ━━━━━━━━━━━━━━━━━━━━ 2s 3ms/step - loss: 0.4735 - accuracy: 0.9120 - "
            "val_loss: 4.9000e-04\n");
}

TEST_F(ProgressTest, ChoosesLinesOnATerminalIfStepsRunElsewhere) {
  open_terminal(100);
  TestFit test({}, /*runs_here=*/false);
  ProgressPrinter printer(Verbose::kAuto, file(), clock_);
  print_epoch(printer, test);
  EXPECT_THAT(shown(), StartsWith("Epoch 1/5\r\n20/20 - 2s - "));
}

TEST_F(ProgressTest, RedrawsTheBarAtMostEvery50Milliseconds) {
  open_terminal(100);
  StepProgress progress(Verbose::kBar, true, file(), clock_);
  progress.begin(0, 100);
  progress.update(1, {});
  EXPECT_THAT(shown(), HasSubstr("  1/100 "));
  clock_.advance(milliseconds(49));
  progress.update(2, {});
  EXPECT_EQ(shown(), "");
  clock_.advance(milliseconds(1));
  progress.update(3, {});
  EXPECT_THAT(shown(), HasSubstr("  3/100 "));
}

TEST_F(ProgressTest, FitsTheWidthOfTheTerminal) {
  open_terminal(41);
  StepProgress progress(Verbose::kBar, true, file(), clock_);
  progress.begin(0, 20);
  clock_.advance(milliseconds(70));
  progress.update(7, make_logs({{"loss", 0.4735}}));
  EXPECT_EQ(shown(), "\r\x1b[K 7/20 ━━──── 0s 10ms/step - loss: 0.4735");
  clock_.advance(seconds(1));
  progress.update(8, make_logs({{"loss", 0.4735}, {"accuracy", 0.912}}));
  EXPECT_EQ(shown(), "\r\x1b[K 8/20 12s 1s/step - loss: 0.4735 - accur");
}

TEST_F(ProgressTest, ShowsNoBarWithoutANumberOfSteps) {
  open_terminal(100);
  StepProgress progress(Verbose::kBar, true, file(), clock_);
  progress.begin(0, 0);
  clock_.advance(milliseconds(7));
  progress.update(7, make_logs({{"loss", 2}}));
  EXPECT_EQ(shown(), "\r\x1b[K7/Unknown 0s 1ms/step - loss: 2.0000");
  progress.end(7, make_logs({{"loss", 2}}));
  EXPECT_EQ(shown(), "\r\x1b[K7/7 ━━━━━━━━━━━━━━━━━━━━ 0s 1ms/step - loss: 2.0000\r\n");
}

TEST_F(ProgressTest, ShowsTimesInTheirUnits) {
  open_terminal(100);
  StepProgress progress(Verbose::kBar, true, file(), clock_);
  progress.begin(0, 10);
  clock_.advance(seconds(500));
  progress.update(1, {});
  EXPECT_THAT(shown(), HasSubstr(" 1:15:00 500s/step"));
  progress.begin(0, 10);
  clock_.advance(seconds(12));
  progress.update(1, {});
  EXPECT_THAT(shown(), HasSubstr(" 1:48 12s/step"));
  progress.begin(0, 10);
  clock_.advance(milliseconds(50));
  progress.update(1, {});
  shown();
  clock_.advance(std::chrono::microseconds(90));
  progress.end(10, {});
  EXPECT_THAT(shown(), HasSubstr(" 0s 10us/step"));
}

// A fit that continues in the middle of an epoch has not run the steps before.
TEST_F(ProgressTest, CountsOnlyStepsSinceTheBeginning) {
  open_pipe();
  StepProgress progress(Verbose::kLines, true, file(), clock_);
  progress.begin(10, 20);
  clock_.advance(seconds(10));
  progress.end(20, {});
  EXPECT_EQ(shown(), "20/20 - 10s - 10s/epoch - 1s/step\n");
}

TEST_F(ProgressTest, RemovesTheBarOfAFitThatFails) {
  open_terminal(100);
  {
    StepProgress progress(Verbose::kBar, true, file(), clock_);
    progress.begin(0, 20);
    progress.update(1, {});
    EXPECT_THAT(shown(), Not(EndsWith("\x1b[K")));
  }
  EXPECT_EQ(shown(), "\r\x1b[K");
}

}  // namespace
}  // namespace trireme::internal
