#include "trireme/coordinator/resource_reader.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/data/open_stream.h"
#include "trireme/exec/random.h"

namespace trireme::internal {
namespace {

// Ranges that are read at the same time. A worker reads one after the other, except for closures of
// other workers that it runs again.
constexpr size_t kMostReaders = 8;

}  // namespace

absl::StatusOr<std::shared_ptr<ResourceReader>> ResourceReader::create(const DatasetStepPtr& step,
                                                                       uint64_t seed,
                                                                       bool in_ranges,
                                                                       Metrics& metrics) {
  std::optional<DatasetRanges> ranges;
  if (in_ranges) {
    TRIREME_ASSIGN_OR_RETURN(ranges, DatasetRanges::create(step));
  }
  return std::shared_ptr<ResourceReader>(
      new ResourceReader(step, seed, std::move(ranges), metrics));
}

Element ResourceReader::take(uint64_t number) {
  if (!ranges_) return whole_->take(number);
  const RangePlace place = place_of(number);
  const int64_t count = ranges_->count();
  const bool exists = count == kUnknownCount ? place.range < kMostRanges - 1
                                             : place.range < static_cast<uint64_t>(count);
  const auto range = exists ? reader_of(place) : nullptr;
  if (!exists || place.index >= range->end) {
    throw Error(ErrorCode::kEndOfData, "there are no more elements", {"", name()});
  }
  try {
    return range->reader.take(place.index);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kEndOfData) range->end = place.index;
    throw;
  }
}

void ResourceReader::put_back(uint64_t number, Element element) {
  if (!ranges_) return whole_->put_back(number, std::move(element));
  const RangePlace place = place_of(number);
  const auto range = reader_of(place, /*or_null=*/true);
  if (range != nullptr) range->reader.put_back(place.index, std::move(element));
}

bool ResourceReader::is_beyond(uint64_t number) const {
  const RangePlace place = place_of(number);
  if (!ranges_ || ranges_->count() != kUnknownCount || place.index != 0) return false;
  const auto source = value_or_throw(ranges_->source_of(static_cast<int64_t>(place.range)));
  return !value_or_throw(open_stream(source, 0)->next()).has_value();
}

// Each range of each epoch has its own random numbers.
std::shared_ptr<ResourceReader::RangeReader> ResourceReader::reader_of(RangePlace place,
                                                                       bool or_null) {
  place.index = 0;
  MutexLock lock(mutex_);
  const auto found =
      std::ranges::find(readers_, place, [](const auto& known) { return known->place; });
  if (found != readers_.end()) {
    readers_.splice(readers_.begin(), readers_, found);
  } else if (or_null) {
    return nullptr;
  } else {
    const auto step = value_or_throw(ranges_->range(static_cast<int64_t>(place.range)));
    const uint64_t seed = step_seed(step_seed(whole_->seed(), place.epoch), place.range);
    if (readers_.size() >= kMostReaders) readers_.pop_back();
    readers_.push_front(std::make_shared<RangeReader>(place, step, seed, *metrics_));
  }
  return readers_.front();
}

}  // namespace trireme::internal
