#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/data/ranges.h"
#include "trireme/data/used_numbers.h"

namespace trireme::internal {

// Sizes of a dataset that is cut into ranges.
struct RangeSizes {
  std::optional<uint64_t> ranges;  // nullopt if it is not known.
  // Returns the number of elements of a range, which may have fewer.
  std::function<uint64_t(uint64_t range)> most_elements;
  uint64_t epochs = 1;
};

// Hands out the ranges of a dataset that workers share, in every epoch once, and keeps an account
// of their elements. A range is free, held by a worker, or done. A worker draws from the range that
// it holds, and then takes the lowest free one. If there are none, it helps with a range of another
// worker, so a slow worker keeps nobody waiting.
//
// Not thread-safe.
class RangeAccount {
 public:
  explicit RangeAccount(RangeSizes sizes);

  // Takes up to `count` elements for a closure that the worker is to run. Returns their numbers.
  std::vector<NumberSpan> take(int worker, uint64_t count);
  // Note that elements were used, or will be taken again. Returns true if one was put back that
  // exists.
  void use(NumberSpan span);
  bool put_back(NumberSpan span);
  // Notes that there is no element with this number. If `is_beyond` is true, its range does not
  // exist.
  void note_end(uint64_t number, bool is_beyond);
  // Lets other workers hold the worker's range.
  void release(int worker) { held_.erase(worker); }
  // Returns true if an element is taken that was neither used nor put back.
  bool has_taken() const;

  // Returns a position that restore() continues from, with any number of workers. Elements that are
  // taken count as unused. `next` is the number of the first element that no worker has been
  // offered. `returned` has the elements before it that were not used, as the first one and the
  // number after the last one of each row of such elements. The last row may lack its end: then it
  // ends at `next`.
  IteratorPosition position(uint64_t seed) const;
  // Checks everything, since the position comes from a file.
  absl::Status restore(const IteratorPosition& position);

 private:
  struct Range {
    UsedNumbers used, taken;
    uint64_t length = 0;  // Number of elements, as far as it is known.

    bool has_free() const { return taken.first_unused() < length; }
    bool is_done() const { return used.first_unused() >= length; }
  };
  // By the number of their first element, the ranges that were handed out and are not done.
  using Ranges = std::map<uint64_t, Range>;

  // Returns the range from which the worker draws next; end() if there are no elements.
  Ranges::iterator range_for(int worker);
  // Hands out the next range; returns end() if there is none.
  Ranges::iterator open_next();
  Ranges::iterator find(uint64_t number);
  Ranges::iterator erase(Ranges::iterator range);
  absl::Status add_unused(uint64_t first, uint64_t end);

  const RangeSizes sizes_;
  std::optional<uint64_t> ranges_;  // Number of ranges of an epoch, once it is known.
  Ranges open_;
  std::map<int, uint64_t> held_;  // Key in `open_` of the range that each worker holds.
  RangePlace next_;               // Place of the next range to be handed out.
};

}  // namespace trireme::internal
