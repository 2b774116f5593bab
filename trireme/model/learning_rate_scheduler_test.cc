#include "trireme/model/learning_rate_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/model/test_fit.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using internal::TestFit;
using testing::HasSubstr;

double halve(int64_t epoch, double lr) {
  return epoch == 0 ? 0.5 : lr / 2;
}

TEST(LearningRateScheduler, SetsTheRateBeforeEachEpoch) {
  TestFit fit({Variable("w", torch::zeros({1}))});
  LearningRateScheduler callback(halve);
  std::vector<double> rates;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    Fit now = fit.at({.epoch = epoch, .epochs = 3});
    if (epoch == 0) callback.on_train_begin(now);
    callback.on_epoch_begin(now);
    Logs logs;
    callback.on_epoch_end(now, logs);
    rates.push_back(logs["learning_rate"]);
    EXPECT_EQ(fit.optimizer().lr(), rates.back());
  }
  EXPECT_THAT(rates, testing::ElementsAre(0.5, 0.25, 0.125));
}

TEST(LearningRateScheduler, SetsTheRateOfAnEpochOnceIfItIsContinued) {
  TestFit fit({Variable("w", torch::zeros({1}))});
  LearningRateScheduler before(halve), after(halve);
  Fit now = fit.at({.epoch = 4, .epochs = 9});
  before.on_train_begin(now);
  before.on_epoch_begin(now);
  EXPECT_EQ(now.lr(), 0.125);
  after.on_train_begin(now);
  after.restore(before.save());
  after.on_epoch_begin(now);
  EXPECT_EQ(now.lr(), 0.125);
  Fit next = fit.at({.epoch = 5, .epochs = 9});
  after.on_epoch_begin(next);
  EXPECT_EQ(next.lr(), 0.0625);
  after.restore(LearningRateScheduler(halve).save());
  after.on_epoch_begin(next);
  EXPECT_EQ(next.lr(), 0.03125);
}

TEST(LearningRateScheduler, RejectsWrongRates) {
  TestFit fit({Variable("w", torch::zeros({1}))});
  Fit now = fit.at({.epoch = 7});
  LearningRateScheduler callback([](int64_t, double) { return -1.0; });
  EXPECT_EQ(error_text([&] { callback.on_epoch_begin(now); }),
            "the function of LearningRateScheduler returned -1 for epoch 7; it must return a "
            "learning rate of 0 or more");
  EXPECT_THAT(error_text([&] { callback.restore("x"); }), HasSubstr("malformed"));
  EXPECT_THAT(error_text([] { LearningRateScheduler(nullptr); }), HasSubstr("empty function"));
}

}  // namespace
}  // namespace trireme
