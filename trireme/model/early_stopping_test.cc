#include "trireme/model/early_stopping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "trireme/model/test_fit.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using internal::make_logs;
using internal::TestFit;
using testing::HasSubstr;
using torch::Tensor;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// A callback in a fit whose variable has the number of the epoch as its value.
struct Watched {
  explicit Watched(EarlyStoppingOptions options) : callback(std::move(options)) {
    Fit at_begin = fit.at({});
    callback.on_train_begin(at_begin);
  }

  // Ends the next epoch with this figure. Returns true if the fit was stopped.
  bool end_epoch(double figure, const std::string& name = "val_loss") {
    weight.assign(torch::full({2}, static_cast<double>(epoch)));
    Fit now = fit.at({.epoch = epoch++, .epochs = 100});
    Logs logs = make_logs({{"loss", 0}, {name, figure}});
    callback.on_epoch_end(now, logs);
    return now.stopped();
  }
  // Returns the number of epochs until the fit was stopped; all of them if it was not.
  int64_t run(const std::vector<double>& figures, const std::string& name = "val_loss") {
    for (const double figure : figures) {
      if (end_epoch(figure, name)) return epoch;
    }
    return epoch;
  }
  // Ends the fit and returns the value of the variable.
  double end() {
    Fit now = fit.at({.epoch = epoch});
    callback.on_train_end(now, {});
    return weight.read()[0].item<double>();
  }

  Variable weight{"weight", torch::zeros({2})};
  TestFit fit{{weight}};
  EarlyStopping callback;
  int64_t epoch = 0;
};

TEST(EarlyStopping, StopsAfterItsPatience) {
  EXPECT_EQ(Watched({}).run({5, 4, 4, 3}), 3);
  EXPECT_EQ(Watched({.patience = 1}).run({5, 4, 4, 3}), 3);
  EXPECT_EQ(Watched({.patience = 2}).run({5, 4, 4, 3, 3, 3, 1}), 6);
  Watched never({.patience = 2});
  EXPECT_EQ(never.run({5, 4, 4, 3}), 4);
  EXPECT_EQ(never.callback.stopped_epoch(), std::nullopt);
  EXPECT_EQ(never.callback.best(), 3);
  EXPECT_EQ(never.callback.best_epoch(), 3);
}

TEST(EarlyStopping, NeedsAChangeOfMinDelta) {
  EXPECT_EQ(Watched({.min_delta = 0.5}).run({5, 4.4, 4, 1}), 3);
  EXPECT_EQ(Watched({.min_delta = 0.3}).run({5, 4.4, 4, 1}), 4);
}

TEST(EarlyStopping, KnowsWhichFiguresShouldBeLarge) {
  EXPECT_EQ(Watched({.monitor = "accuracy"}).run({1, 2, 3, 2, 5}, "accuracy"), 4);
  EXPECT_EQ(Watched({.monitor = "val_auc"}).run({1, 2, 1}, "val_auc"), 3);
  EXPECT_EQ(
      Watched({.monitor = "val_mean_absolute_error"}).run({3, 2, 3, 1}, "val_mean_absolute_error"),
      3);
  EXPECT_EQ(Watched({.monitor = "reward", .mode = MonitorMode::kMax}).run({1, 2, 1}, "reward"), 3);
  EXPECT_EQ(Watched({.mode = MonitorMode::kMax}).run({1, 2, 1}), 3);
}

TEST(EarlyStopping, WaitsForItsFirstEpochAndItsBaseline) {
  EXPECT_EQ(Watched({.start_from_epoch = 3}).run({1, 2, 3, 4, 3, 5, 5}), 6);
  // Improvements that do not reach the baseline do not reset the patience.
  EXPECT_EQ(Watched({.patience = 3, .baseline = 1}).run({5, 4, 3, 3, 3}), 4);
  EXPECT_EQ(Watched({.patience = 3, .baseline = 1}).run({5, 0.5, 3, 3, 3, 3}), 5);
}

TEST(EarlyStopping, IsNotMisledByNanAndMissingFigures) {
  EXPECT_EQ(Watched({.patience = 2}).run({kNotANumber, 3, kNotANumber, 2, 3, 3, 1}), 6);
  Watched other({.patience = 1});
  EXPECT_EQ(other.run({1, 2, 3, 4}, "accuracy"), 4);
  EXPECT_EQ(other.callback.best(), std::nullopt);
}

TEST(EarlyStopping, RestoresTheBestWeights) {
  Watched best({.patience = 2, .restore_best_weights = true});
  best.run({5, 4, 3, 6, 7});
  EXPECT_EQ(best.callback.stopped_epoch(), 4);
  EXPECT_EQ(best.end(), 2);
  Watched last({.patience = 2});
  last.run({5, 4, 3, 6, 7});
  EXPECT_EQ(last.end(), 4);
  Watched unstopped({.patience = 9, .restore_best_weights = true});
  unstopped.run({5, 4, 6});
  EXPECT_EQ(unstopped.end(), 1);
}

TEST(EarlyStopping, ContinuesWithItsSavedState) {
  Watched before({.patience = 3, .restore_best_weights = true});
  before.run({5, 4, 6});
  Watched after({.patience = 3, .restore_best_weights = true});
  after.callback.restore(before.callback.save());
  after.epoch = 3;
  EXPECT_EQ(after.callback.save(), before.callback.save());
  EXPECT_EQ(after.run({4.5, 4.5, 4.5}), 5);
  EXPECT_EQ(after.end(), 1);
  Watched fresh({});
  fresh.callback.restore(EarlyStopping().save());
  EXPECT_EQ(fresh.callback.best(), std::nullopt);
  EXPECT_THAT(error_text([&] { fresh.callback.restore("{}"); }),
              HasSubstr("the saved state of EarlyStopping is malformed"));
}

TEST(EarlyStopping, DoesNotSaveLargeWeights) {
  Watched before({.restore_best_weights = true});
  const Variable large("large", torch::zeros({3 << 20}));
  before.fit = TestFit({large});
  before.run({5, 4});
  EXPECT_LT(before.callback.save().size(), 1000);
  Watched after({.restore_best_weights = true});
  after.callback.restore(before.callback.save());
  after.epoch = 2;
  EXPECT_FALSE(after.end_epoch(3));
  EXPECT_EQ(after.end(), 2);
}

TEST(EarlyStopping, RejectsWrongOptions) {
  EXPECT_EQ(error_text([] { EarlyStopping({.monitor = "reward"}); }),
            "EarlyStopping cannot tell by its name if a larger or a smaller 'reward' is better; "
            "set the option mode to MonitorMode::kMin or kMax");
  EXPECT_THAT(error_text([] { EarlyStopping({.patience = -1}); }), HasSubstr("patience"));
  EXPECT_THAT(error_text([] { EarlyStopping({.min_delta = -1}); }), HasSubstr("min_delta"));
}

}  // namespace
}  // namespace trireme
