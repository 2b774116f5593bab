#include "trireme/optim/schedule.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

TEST(Schedule, DecaysFollowTheirFormulas) {
  const Schedule smooth = exponential_decay({.lr = 1, .factor = 0.25, .steps = 10});
  EXPECT_DOUBLE_EQ(smooth(0), 1);
  EXPECT_DOUBLE_EQ(smooth(5), 0.5);
  EXPECT_DOUBLE_EQ(smooth(20), 0.0625);
  const Schedule stairs =
      exponential_decay({.lr = 1, .factor = 0.25, .steps = 10, .staircase = true});
  EXPECT_DOUBLE_EQ(stairs(9), 1);
  EXPECT_DOUBLE_EQ(stairs(10), 0.25);

  const Schedule line = polynomial_decay({.lr = 1, .end_lr = 0.2, .steps = 8});
  EXPECT_DOUBLE_EQ(line(0), 1);
  EXPECT_DOUBLE_EQ(line(4), 0.6);
  EXPECT_DOUBLE_EQ(line(100), 0.2);

  const Schedule cosine = cosine_decay({.lr = 2, .end_lr = 1, .steps = 10});
  EXPECT_DOUBLE_EQ(cosine(0), 2);
  EXPECT_NEAR(cosine(5), 1.5, 1e-12);
  EXPECT_DOUBLE_EQ(cosine(11), 1);
}

TEST(Schedule, PiecewiseConstantKeepsEachRateUntilTheNext) {
  const Schedule rates = piecewise_constant({{0, 1.0}, {10, 0.1}, {20, 0.01}});
  EXPECT_EQ(rates(0), 1);
  EXPECT_EQ(rates(9), 1);
  EXPECT_EQ(rates(10), 0.1);
  EXPECT_EQ(rates(1000), 0.01);
  EXPECT_THROW(piecewise_constant({}), Error);
  EXPECT_THROW(piecewise_constant({{5, 1.0}}), Error);
  EXPECT_THROW(piecewise_constant({{0, 1.0}, {9, 1.0}, {3, 2.0}}), Error);
}

TEST(Schedule, WarmUpGrowsToTheRateOfTheSchedule) {
  const Schedule schedule = warm_up(4, constant_rate(1));
  EXPECT_DOUBLE_EQ(schedule(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule(3), 0.8);
  EXPECT_DOUBLE_EQ(schedule(4), 1);
  EXPECT_THROW(warm_up(0, constant_rate(1)), Error);
}

}  // namespace
}  // namespace trireme
