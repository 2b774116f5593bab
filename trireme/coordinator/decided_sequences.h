#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace trireme::internal {

// Which of the sequences that were given are decided. Most are decided in about their order, so
// little has to be remembered, however many there are. Not thread-safe.
class DecidedSequences {
 public:
  // All smaller ones are decided.
  uint64_t watermark() const { return watermark_; }
  // The first that is not given yet.
  uint64_t next() const { return next_; }

  // So many, one after the other; the first of them.
  uint64_t give(uint64_t count) {
    next_ += count;
    return next_ - count;
  }

  // These are decided; none of them was before.
  void decide(uint64_t first, uint64_t count) {
    uint64_t end = first + count;
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

 private:
  uint64_t watermark_ = 1;
  uint64_t next_ = 1;
  std::map<uint64_t, uint64_t>
      ranges_;  // above the watermark: the first, and the one after the last
};

}  // namespace trireme::internal
