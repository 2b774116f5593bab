#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace trireme::internal {

// Allocates sequence numbers and keeps track of which are decided. Sequences are decided roughly in
// order, so the decided ones are stored as a watermark and a few ranges above it: memory grows with
// the number of gaps, not with the number of sequences. Not thread-safe.
class DecidedSequences {
 public:
  // Returns the sequence below which all sequences are decided.
  uint64_t watermark() const { return watermark_; }
  // Returns the first sequence that is not allocated.
  uint64_t next() const { return next_; }

  // Allocates `count` consecutive sequence numbers and returns the first.
  uint64_t allocate(uint64_t count) {
    next_ += count;
    return next_ - count;
  }

  // Marks `count` sequences from `first` on as decided. None of them may be decided already.
  void decide(uint64_t first, uint64_t count) {
    uint64_t end = first + count;
    // Merges the range with the one that follows, then with the watermark or the one before it.
    auto after = ranges_.lower_bound(first);
    if (after != ranges_.end() && after->first == end) {
      end = after->second;
      after = ranges_.erase(after);
    }
    if (first == watermark_) {
      watermark_ = end;
    } else if (after != ranges_.begin() && std::prev(after)->second == first) {
      std::prev(after)->second = end;
    } else {
      ranges_.emplace_hint(after, first, end);
    }
  }

  // Marks all sequences that are allocated as decided.
  void decide_all() {
    watermark_ = next_;
    ranges_.clear();
  }

  // Returns the number of ranges that are stored.
  size_t ranges() const { return ranges_.size(); }

 private:
  uint64_t watermark_ = 1;
  uint64_t next_ = 1;
  // Decided ranges above the watermark: from the first sequence of each to the one after its last.
  std::map<uint64_t, uint64_t> ranges_;
};

}  // namespace trireme::internal
