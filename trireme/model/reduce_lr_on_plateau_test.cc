#include "trireme/model/reduce_lr_on_plateau.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/model/test_fit.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using internal::make_logs;
using internal::TestFit;
using testing::ElementsAre;
using testing::HasSubstr;

// A callback in a fit whose learning rate is 0.25 at first.
struct Plateau {
  explicit Plateau(ReduceLrOnPlateauOptions options) : callback(std::move(options)) {
    Fit at_begin = fit.at({});
    callback.on_train_begin(at_begin);
  }

  // Returns the learning rates of the epochs with these figures.
  std::vector<double> run(const std::vector<double>& figures) {
    std::vector<double> rates;
    for (const double figure : figures) {
      Fit now = fit.at({.epoch = epoch++, .epochs = 100});
      Logs logs = make_logs({{"val_loss", figure}});
      callback.on_epoch_end(now, logs);
      rates.push_back(logs["learning_rate"]);
    }
    return rates;
  }

  TestFit fit{{Variable("w", torch::zeros({1}))}};
  ReduceLrOnPlateau callback;
  int64_t epoch = 0;
};

TEST(ReduceLrOnPlateau, ReducesTheRateAfterItsPatience) {
  EXPECT_THAT(Plateau({.factor = 0.5, .patience = 2}).run({5, 4, 4, 4, 4, 4, 3, 3, 3, 3}),
              ElementsAre(0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.0625, 0.0625, 0.0625, 0.03125));
  EXPECT_THAT(Plateau({.factor = 0.5, .patience = 1}).run({5, 4.99999, 4.9, 4}),
              ElementsAre(0.25, 0.25, 0.125, 0.125));
}

TEST(ReduceLrOnPlateau, WaitsForItsCooldownAndStopsAtTheSmallestRate) {
  EXPECT_THAT(Plateau({.factor = 0.5, .patience = 1, .cooldown = 2}).run({5, 5, 5, 5, 5}),
              ElementsAre(0.25, 0.25, 0.125, 0.125, 0.0625));
  EXPECT_THAT(Plateau({.factor = 0.5, .patience = 1, .min_lr = 0.1}).run({5, 5, 5, 5, 5}),
              ElementsAre(0.25, 0.25, 0.125, 0.1, 0.1));
}

TEST(ReduceLrOnPlateau, ContinuesWithItsSavedState) {
  const ReduceLrOnPlateauOptions options{.factor = 0.5, .patience = 2, .cooldown = 1};
  const std::vector<double> figures{5, 4, 4, 4, 4, 4, 4, 4, 3, 4, 4, 4};
  const std::vector<double> undisturbed = Plateau(options).run(figures);
  EXPECT_LT(undisturbed.back(), 0.1);
  for (size_t cut = 0; cut <= figures.size(); ++cut) {
    Plateau before(options), after(options);
    const auto middle = figures.begin() + static_cast<std::ptrdiff_t>(cut);
    std::vector<double> rates = before.run({figures.begin(), middle});
    after.callback.restore(before.callback.save());
    after.fit.optimizer().set_lr(before.fit.optimizer().lr());
    for (const double rate : after.run({middle, figures.end()})) rates.push_back(rate);
    EXPECT_EQ(rates, undisturbed) << "cut after " << cut << " epochs";
  }
  EXPECT_THAT(error_text([&] { Plateau(options).callback.restore("[]"); }),
              HasSubstr("the saved state of ReduceLrOnPlateau is malformed"));
}

TEST(ReduceLrOnPlateau, RejectsWrongOptions) {
  EXPECT_EQ(error_text([] { ReduceLrOnPlateau({.factor = 2}); }),
            "the option factor of ReduceLrOnPlateau is 2; it must be between 0 and 1, so that the "
            "rate gets smaller");
  EXPECT_THAT(error_text([] { ReduceLrOnPlateau({.patience = -1}); }), HasSubstr("patience"));
}

}  // namespace
}  // namespace trireme
