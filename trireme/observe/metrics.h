#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "trireme/base/mutex.h"

namespace trireme {

// A number that only grows. Thread-safe; adding costs one relaxed atomic operation.
class Counter {
 public:
  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_ = 0;
};

// A number that goes up and down, such as the number of steps in flight. Thread-safe.
class Gauge {
 public:
  void add(int64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_ = 0;
};

// The distribution of a number, counted in buckets whose width is an eighth of their value. A
// quantile is therefore off by at most 12.5 %. Its memory is fixed. Thread-safe and lock-free.
class Histogram {
 public:
  static constexpr int kBuckets = 64 * 8;

  struct Snapshot {
    uint64_t count = 0;
    double sum = 0;
    std::array<uint64_t, kBuckets> buckets = {};

    double mean() const { return count == 0 ? 0 : sum / count; }
    // Returns the value below which the share `q` (0 to 1) of all values lies, or 0 if there are no
    // values.
    double quantile(double q) const;
  };

  void add(uint64_t value);
  Snapshot snapshot() const;

 private:
  std::array<std::atomic<uint64_t>, kBuckets> buckets_ = {};
  std::atomic<uint64_t> sum_ = 0;
};

// The metrics of one server or program, by name. A metric is created at its first use and lives as
// long as the registry. Keep the reference instead of looking it up in a hot path. Thread-safe.
//
//   Counter& calls = metrics.counter("calls");
//   calls.add();
class Metrics {
 public:
  Counter& counter(const std::string& name);
  Gauge& gauge(const std::string& name);
  Histogram& histogram(const std::string& name);

  // Return the current values of all metrics.
  std::map<std::string, uint64_t> counters() const;
  std::map<std::string, int64_t> gauges() const;
  std::map<std::string, Histogram::Snapshot> histograms() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<Counter>> counters_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<Gauge>> gauges_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<Histogram>> histograms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme
