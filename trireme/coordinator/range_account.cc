#include "trireme/coordinator/range_account.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

// Ranges are handed out in ascending order of their numbers, one epoch after the other. So the
// ranges below `next_` that are not in `open_` are done, and need no memory.
//
// How many elements a range has is an estimate from above until a worker has asked for an element
// that does not exist. Other closures may have been allotted further such elements by then. They
// are answered in the same way, and their elements put back, which has no effect.
namespace trireme::internal {
namespace {

// Ranges that a position from a file may have open at most.
constexpr size_t kMostOpen = 1 << 16;

uint64_t key_of(uint64_t number) {
  return number - number % kMostInRange;
}

absl::Status invalid_position(const char* why) {
  return make_status(ErrorCode::kInvalidArgument, why, {"", "position of a shared dataset"});
}

}  // namespace

RangeAccount::RangeAccount(RangeSizes sizes) : sizes_(std::move(sizes)), ranges_(sizes_.ranges) {}

std::vector<NumberSpan> RangeAccount::take(int worker, uint64_t count) {
  std::vector<NumberSpan> spans;
  while (count > 0) {
    const auto range = range_for(worker);
    if (range == open_.end()) break;
    NumberSpan gap = range->second.taken.first_gap(count);
    gap.count = std::min(gap.count, range->second.length - gap.first);
    range->second.taken.use(gap);
    spans.push_back({range->first + gap.first, gap.count});
    count -= gap.count;
  }
  return spans;
}

RangeAccount::Ranges::iterator RangeAccount::range_for(int worker) {
  if (const auto held = held_.find(worker); held != held_.end()) {
    const auto range = open_.find(held->second);
    if (range->second.has_free()) return range;
    held_.erase(held);
  }
  const auto is_held = [&](uint64_t key) {
    return std::ranges::any_of(held_, [&](const auto& held) { return held.second == key; });
  };
  auto help = open_.end();
  for (auto range = open_.begin(); range != open_.end(); ++range) {
    if (!range->second.has_free()) continue;
    if (!is_held(range->first)) {
      held_[worker] = range->first;
      return range;
    }
    if (help == open_.end()) help = range;
  }
  const auto next = open_next();
  if (next == open_.end()) return help;
  held_[worker] = next->first;
  return next;
}

RangeAccount::Ranges::iterator RangeAccount::open_next() {
  for (;;) {
    const bool epoch_ends = next_.range >= ranges_.value_or(kMostRanges);
    if (epoch_ends) next_ = {.epoch = next_.epoch + 1};
    if (next_.epoch >= sizes_.epochs || ranges_ == 0) return open_.end();
    if (next_.epoch >= kMostEpochs) {
      // Endless repetition has no further numbers. It begins again once none of them is in use.
      if (!open_.empty()) return open_.end();
      next_ = {};
    }
    const RangePlace place = next_;
    ++next_.range;
    const uint64_t length = std::min(sizes_.most_elements(place.range), kMostInRange);
    if (length == 0) continue;
    return open_.insert_or_assign(number_of(place), Range{.length = length}).first;
  }
}

RangeAccount::Ranges::iterator RangeAccount::find(uint64_t number) {
  return open_.find(key_of(number));
}

RangeAccount::Ranges::iterator RangeAccount::erase(Ranges::iterator range) {
  std::erase_if(held_, [&](const auto& held) { return held.second == range->first; });
  return open_.erase(range);
}

void RangeAccount::use(NumberSpan span) {
  const auto range = find(span.first);
  if (range == open_.end()) return;
  range->second.used.use({span.first - range->first, span.count});
  if (range->second.is_done()) erase(range);
}

bool RangeAccount::put_back(NumberSpan span) {
  const auto range = find(span.first);
  if (range == open_.end()) return false;
  range->second.taken.put_back({span.first - range->first, span.count});
  return span.first - range->first < range->second.length;
}

void RangeAccount::note_end(uint64_t number, bool is_beyond) {
  const RangePlace place = place_of(number);
  if (is_beyond && !sizes_.ranges) {
    ranges_ = std::min(ranges_.value_or(place.range), place.range);
    for (auto range = open_.begin(); range != open_.end();) {
      range = place_of(range->first).range >= *ranges_ ? erase(range) : std::next(range);
    }
    return;
  }
  const auto range = find(number);
  if (range == open_.end()) return;
  range->second.length = std::min(range->second.length, place.index);
  if (range->second.is_done()) erase(range);
}

bool RangeAccount::has_taken() const {
  return std::ranges::any_of(open_, [](const auto& range) {
    const auto& [used, taken, length] = range.second;
    return used.next() != taken.next() || used.unused() != taken.unused();
  });
}

IteratorPosition RangeAccount::position(uint64_t seed) const {
  IteratorPosition position{.seed = seed, .next = number_of(next_)};
  std::vector<uint64_t>& bounds = position.returned;
  const auto add = [&](uint64_t first, uint64_t end) {
    if (!bounds.empty() && bounds.back() == first) {
      bounds.back() = end;
    } else {
      bounds.insert(bounds.end(), {first, end});
    }
  };
  for (const auto& [key, range] : open_) {
    for (const NumberSpan& gap : range.used.unused()) {
      add(key + gap.first, key + gap.first + gap.count);
    }
    if (range.used.next() < range.length) add(key + range.used.next(), key + kMostInRange);
  }
  if (!bounds.empty() && bounds.back() == position.next) bounds.pop_back();
  return position;
}

absl::Status RangeAccount::restore(const IteratorPosition& position) {
  if (place_of(position.next).index != 0) return invalid_position("its next element is wrong");
  std::vector<uint64_t> bounds = position.returned;
  if (bounds.size() % 2 != 0) bounds.push_back(position.next);
  RangeAccount restored(sizes_);
  restored.next_ = place_of(position.next);
  uint64_t least = 0;
  for (size_t i = 0; i < bounds.size(); i += 2) {
    if (bounds[i] < least || bounds[i + 1] <= bounds[i] || bounds[i + 1] > position.next) {
      return invalid_position("its unused elements are not in ascending order");
    }
    TRIREME_RETURN_IF_ERROR(restored.add_unused(bounds[i], bounds[i + 1]));
    least = bounds[i + 1];
  }
  open_ = std::move(restored.open_);
  held_.clear();
  ranges_ = sizes_.ranges;
  next_ = restored.next_;
  return absl::OkStatus();
}

// The elements may be in several ranges.
absl::Status RangeAccount::add_unused(uint64_t first, uint64_t end) {
  while (first < end) {
    const uint64_t key = key_of(first), part_end = std::min(end, key + kMostInRange);
    auto [range, is_new] = open_.try_emplace(key);
    if (is_new) {
      if (open_.size() > kMostOpen) return invalid_position("it has too many unfinished ranges");
      range->second.length = std::min(sizes_.most_elements(place_of(key).range), kMostInRange);
      range->second.used.use({0, kMostInRange});
    }
    range->second.used.put_back({first - key, part_end - first});
    range->second.taken = range->second.used;
    if (range->second.is_done()) open_.erase(range);
    first = part_end;
  }
  return absl::OkStatus();
}

}  // namespace trireme::internal
