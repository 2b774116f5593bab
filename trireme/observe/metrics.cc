#include "trireme/observe/metrics.h"

#include <bit>
#include <cmath>

namespace trireme {
namespace {

// Returns the bucket of a value. Values below 8 have a bucket each. For larger values the position
// of the leading bit selects a group of 8 buckets, and the three bits after it the bucket within.
int bucket_of(uint64_t value) {
  if (value < 8) return static_cast<int>(value);
  const int exponent = std::bit_width(value) - 1;
  return (exponent - 2) * 8 + static_cast<int>((value >> (exponent - 3)) & 7);
}

// Returns the middle of the range of values that a bucket counts.
double middle_of(int bucket) {
  if (bucket < 8) return bucket;
  const double width = std::ldexp(1.0, bucket / 8 - 1);
  return (8 + bucket % 8) * width + width / 2;
}

template <typename Map>
auto& find_or_make(Map& map, const std::string& name) {
  auto& slot = map[name];
  if (!slot) slot = std::make_unique<typename Map::mapped_type::element_type>();
  return *slot;
}

}  // namespace

double Histogram::Snapshot::quantile(double q) const {
  if (count == 0) return 0;
  const double rank = q * static_cast<double>(count - 1);
  uint64_t seen = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    seen += buckets[bucket];
    if (static_cast<double>(seen) > rank) return middle_of(bucket);
  }
  return middle_of(kBuckets - 1);
}

void Histogram::add(uint64_t value) {
  buckets_[bucket_of(value)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Histogram::Snapshot Histogram::snapshot() const {
  Snapshot result;
  for (int i = 0; i < kBuckets; ++i) {
    result.buckets[i] = buckets_[i].load(std::memory_order_relaxed);
    result.count += result.buckets[i];
  }
  result.sum = static_cast<double>(sum_.load(std::memory_order_relaxed));
  return result;
}

Counter& Metrics::counter(const std::string& name) {
  MutexLock lock(mutex_);
  return find_or_make(counters_, name);
}

Gauge& Metrics::gauge(const std::string& name) {
  MutexLock lock(mutex_);
  return find_or_make(gauges_, name);
}

Histogram& Metrics::histogram(const std::string& name) {
  MutexLock lock(mutex_);
  return find_or_make(histograms_, name);
}

std::map<std::string, uint64_t> Metrics::counters() const {
  MutexLock lock(mutex_);
  std::map<std::string, uint64_t> result;
  for (const auto& [name, counter] : counters_) result[name] = counter->value();
  return result;
}

std::map<std::string, int64_t> Metrics::gauges() const {
  MutexLock lock(mutex_);
  std::map<std::string, int64_t> result;
  for (const auto& [name, gauge] : gauges_) result[name] = gauge->value();
  return result;
}

std::map<std::string, Histogram::Snapshot> Metrics::histograms() const {
  MutexLock lock(mutex_);
  std::map<std::string, Histogram::Snapshot> result;
  for (const auto& [name, histogram] : histograms_) result[name] = histogram->snapshot();
  return result;
}

}  // namespace trireme
