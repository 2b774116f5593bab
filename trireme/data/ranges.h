#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/data/dataset_step.h"

// A dataset that workers share is cut into ranges, which they read one by one. A range is a file of
// the source, or some consecutive elements of a source that is not several files. The steps after
// the source run inside of each range: a batch or a shuffle has elements of one range only.
namespace trireme::internal {

// Limits for the parts of an element's number.
inline constexpr uint64_t kMostEpochs = (1 << 16) - 1;
inline constexpr uint64_t kMostRanges = 1 << 17;
inline constexpr uint64_t kMostInRange = 1 << 30;
// Number of an element that no dataset has.
inline constexpr uint64_t kNoElement = (uint64_t{1} << 63) - 2;

// Place of an element in a dataset that is cut into ranges. Its number has the epoch in its high
// bits, then the range, then the index.
struct RangePlace {
  uint64_t epoch = 0;
  uint64_t range = 0;
  uint64_t index = 0;  // place in the range, counted from 0

  bool operator==(const RangePlace&) const = default;
};

uint64_t number_of(const RangePlace& place);
RangePlace place_of(uint64_t number);

// The ranges of a dataset. The same dataset has the same ranges in every process. Copies are cheap.
// Thread-safe.
class DatasetRanges {
 public:
  // Returns an error that names the step if the dataset has one that cannot run inside of a range.
  static absl::StatusOr<DatasetRanges> create(DatasetStepPtr step);

  // Returns the number of ranges, or kUnknownCount if only reading the file shows it.
  int64_t count() const;
  // Returns true if each range has exactly most_elements(), since the source is in memory and each
  // step keeps the number of elements, or joins them into batches.
  bool are_exact() const;
  // Returns the number of elements of a range. It may have fewer if the dataset has a filter(), or
  // if the length of its file is not known.
  uint64_t most_elements(int64_t range) const;
  // Returns the steps that give the elements of a range.
  absl::StatusOr<DatasetStepPtr> range(int64_t range) const;
  // Returns the part of the source that the range reads. If it has no element, there are no further
  // ranges.
  absl::StatusOr<DatasetStepPtr> source_of(int64_t range) const;

 private:
  DatasetRanges() = default;
  bool by_files() const { return source_->def.files().names_size() > 1; }
  // Return the number of the source's elements in a range, and before it.
  int64_t rows(int64_t range) const;
  int64_t begin(int64_t range) const;

  DatasetStepPtr source_;
  std::vector<DatasetStepPtr> steps_;  // the steps after the source, in order
  int64_t rows_ = 0;                   // number of the source's elements in the first range
};

}  // namespace trireme::internal
