#include "trireme/observe/metrics.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace trireme {
namespace {

TEST(Metrics, CountsFromManyThreads) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&metrics] {
      Counter& counter = metrics.counter("calls");
      Histogram& histogram = metrics.histogram("latency_us");
      for (int j = 0; j < 10000; ++j) {
        counter.add();
        histogram.add(j);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.counters().at("calls"), 40000u);
  const Histogram::Snapshot latency = metrics.histograms().at("latency_us");
  EXPECT_EQ(latency.count, 40000u);
  EXPECT_EQ(latency.mean(), 9999.0 / 2);
}

TEST(Histogram, QuantilesAreWithinAnEighth) {
  Histogram histogram;
  for (uint64_t value = 1; value <= 100000; ++value) histogram.add(value);
  const Histogram::Snapshot snapshot = histogram.snapshot();
  for (double q : {0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const double exact = 1 + q * 99999;
    EXPECT_NEAR(snapshot.quantile(q), exact, exact * 0.125) << q;
  }
}

TEST(Histogram, AcceptsTheWholeRangeOfValues) {
  Histogram histogram;
  EXPECT_EQ(histogram.snapshot().quantile(0.5), 0);
  for (uint64_t value : {uint64_t{0}, uint64_t{7}, uint64_t{8}, ~uint64_t{0}}) histogram.add(value);
  EXPECT_EQ(histogram.snapshot().count, 4u);
  EXPECT_EQ(histogram.snapshot().quantile(0), 0);
  EXPECT_NEAR(histogram.snapshot().quantile(1), 1.8e19, 2e18);
}

}  // namespace
}  // namespace trireme
