#include "trireme/data/used_numbers.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// Streams count in int64.
constexpr uint64_t kMostNumbers = std::numeric_limits<int64_t>::max();
// Limit for a position that lists every number that was left out.
constexpr uint64_t kMostReturned = 1 << 24;

absl::Status invalid_position(std::string message) {
  return make_status(ErrorCode::kInvalidArgument, std::move(message), {"", "iterator position"});
}

}  // namespace

void add_number(std::vector<NumberSpan>& spans, uint64_t number) {
  if (!spans.empty() && spans.back().first + spans.back().count == number) {
    ++spans.back().count;
  } else {
    spans.push_back({number, 1});
  }
}

bool is_valid(NumberSpan span) {
  return span.first <= kMostNumbers && span.count <= kMostNumbers - span.first;
}

absl::StatusOr<UsedNumbers> UsedNumbers::create(uint64_t next,
                                                const std::vector<NumberSpan>& unused) {
  if (next > kMostNumbers) {
    return invalid_position(absl::StrCat("its next element ", next, " cannot be counted"));
  }
  UsedNumbers numbers;
  numbers.use({0, next});
  uint64_t end = 0;
  for (const NumberSpan& span : unused) {
    if (!is_valid(span) || span.first < end || span.first + span.count > next) {
      return invalid_position(
          absl::StrCat("its unused elements are not in ascending order, or not "
                       "below its next element ",
                       next));
    }
    end = span.first + span.count;
    numbers.put_back(span);
  }
  return numbers;
}

absl::StatusOr<UsedNumbers> UsedNumbers::create(const IteratorPosition& position) {
  std::vector<NumberSpan> unused;
  for (uint64_t number : position.returned) unused.push_back({number, 1});
  return create(position.next, unused);
}

void UsedNumbers::use(NumberSpan span) {
  if (span.count == 0) return;
  const uint64_t end = span.first + span.count;
  if (span.first > next_) unused_[next_] = span.first;
  auto gap = unused_.upper_bound(span.first);
  if (gap != unused_.begin()) --gap;
  while (gap != unused_.end() && gap->first < end) {
    const auto [from, to] = *gap;
    if (to <= span.first) {
      ++gap;
      continue;
    }
    gap = unused_.erase(gap);
    if (from < span.first) unused_.emplace(from, span.first);
    if (to > end) unused_.emplace(end, to);
  }
  next_ = std::max(next_, end);
}

void UsedNumbers::put_back(NumberSpan span) {
  uint64_t first = span.first, end = std::min(span.first + span.count, next_);
  if (first >= end) return;
  auto gap = unused_.upper_bound(first);
  if (gap != unused_.begin() && std::prev(gap)->second >= first) --gap;
  while (gap != unused_.end() && gap->first <= end) {
    first = std::min(first, gap->first);
    end = std::max(end, gap->second);
    gap = unused_.erase(gap);
  }
  if (end == next_) {
    next_ = first;
  } else {
    unused_[first] = end;
  }
}

NumberSpan UsedNumbers::first_gap(uint64_t count) const {
  if (unused_.empty()) return {next_, count};
  const auto& [begin, end] = *unused_.begin();
  return {begin, std::min(count, end - begin)};
}

std::vector<NumberSpan> UsedNumbers::unused() const {
  std::vector<NumberSpan> spans;
  for (const auto& [first, end] : unused_) spans.push_back({first, end - first});
  return spans;
}

absl::StatusOr<IteratorPosition> UsedNumbers::position(uint64_t seed) const {
  IteratorPosition position{.seed = seed, .next = next_};
  for (const auto& [first, end] : unused_) {
    if (end - first > kMostReturned - position.returned.size()) {
      return make_status(ErrorCode::kResourceExhausted,
                         absl::StrCat("more than ", kMostReturned, " elements below element ",
                                      next_, " were not used; wait until more closures are done"),
                         {"", "iterator position"});
    }
    for (uint64_t number = first; number < end; ++number) position.returned.push_back(number);
  }
  return position;
}

}  // namespace trireme::internal
