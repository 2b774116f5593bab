#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/data/element_reader.h"
#include "trireme/data/input_metrics.h"
#include "trireme/data/ranges.h"
#include "trireme/observe/metrics.h"

namespace trireme::internal {

// Makes the elements of a resource by their numbers, for the closures of a worker. Thread-safe.
class ResourceReader {
 public:
  // `in_ranges` is true if numbers are places in ranges. Returns an error if the dataset cannot be
  // cut into ranges. Counts in `metrics` where the time goes.
  static absl::StatusOr<std::shared_ptr<ResourceReader>> create(const DatasetStepPtr& step,
                                                                uint64_t seed, bool in_ranges,
                                                                Metrics& metrics);

  // Makes the element with this number, or takes the one that was put back. Throws Error: with
  // END_OF_DATA if there is none.
  Element take(uint64_t number);
  // Keeps an element, so that the next take() of its number need not make it again.
  void put_back(uint64_t number, Element element);
  // Returns true if the whole range of an element, which was not found, does not exist. Throws
  // Error if the file cannot be read.
  bool is_beyond(uint64_t number) const;

  // Returns a name for errors: "iterator over range(5)".
  const std::string& name() const { return whole_->name(); }

 private:
  ResourceReader(const DatasetStepPtr& step, uint64_t seed, std::optional<DatasetRanges> ranges,
                 Metrics& metrics)
      : metrics_(std::make_shared<InputMetrics>(metrics, *step)),
        whole_(std::make_shared<ElementReader>(step, seed, metrics_)),
        ranges_(std::move(ranges)) {}
  struct RangeReader {
    RangeReader(const RangePlace& its_place, const DatasetStepPtr& step, uint64_t seed,
                const InputMetrics& metrics)
        : place(its_place), reader(step, seed, metrics.for_part(*step)) {}

    const RangePlace place;  // Place of the first element.
    ElementReader reader;
    // Index from which on no elements exist, as far as it is known. Saves searching again.
    std::atomic<uint64_t> end = kMostInRange;
  };
  // Returns the reader of an element's range, or null if `or_null` is true and there is none yet.
  std::shared_ptr<RangeReader> reader_of(RangePlace place, bool or_null = false);

  const std::shared_ptr<InputMetrics> metrics_;
  const std::shared_ptr<ElementReader> whole_;
  const std::optional<DatasetRanges> ranges_;
  Mutex mutex_;
  // The reader that was used last is the first.
  std::list<std::shared_ptr<RangeReader>> readers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
