#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"

// Iterators number their elements from 0, in the order in which their datasets give them. Which
// numbers were used is the position of an iterator: an iterator over the same dataset with the same
// seed, opened at that position, gives the elements that are left.
namespace trireme::internal {

// Consecutive numbers.
struct NumberSpan {
  uint64_t first = 0;
  uint64_t count = 0;

  bool operator==(const NumberSpan&) const = default;
};

// Position of an iterator as plain data.
struct IteratorPosition {
  uint64_t seed = 0;
  uint64_t next = 0;                    // no number from this one on was used
  std::vector<uint64_t> returned = {};  // numbers below `next` that were not used, ascending

  bool operator==(const IteratorPosition&) const = default;
};

// The numbers of one iterator that were used. Small as long as almost all numbers below the largest
// one were used. Not thread-safe.
class UsedNumbers {
 public:
  UsedNumbers() = default;
  // Returns the set of all numbers below `next` but those in `unused`, which are in ascending order
  // and do not overlap. Checks everything, since it may come from a peer or a file.
  static absl::StatusOr<UsedNumbers> create(uint64_t next, const std::vector<NumberSpan>& unused);
  static absl::StatusOr<UsedNumbers> create(const IteratorPosition& position);

  // Adds numbers. Those that are present stay so. `span` must be valid.
  void use(NumberSpan span);
  // Removes numbers.
  void put_back(NumberSpan span);

  // Returns the smallest number that was not used.
  uint64_t first_unused() const { return unused_.empty() ? next_ : unused_.begin()->first; }
  // Returns the smallest numbers that were not used and follow each other: at most `count`.
  NumberSpan first_gap(uint64_t count) const;
  // Returns the largest number that was used plus one; 0 if none was.
  uint64_t next() const { return next_; }
  // Returns the numbers below next() that were not used, in ascending order.
  std::vector<NumberSpan> unused() const;
  // Returns the position of an iterator with this seed. Fails if too many numbers were left out to
  // list them.
  absl::StatusOr<IteratorPosition> position(uint64_t seed) const;

 private:
  uint64_t next_ = 0;
  // Begin and end of the gaps below next_. They do not touch each other, nor next_.
  std::map<uint64_t, uint64_t> unused_;
};

// Adds a number to spans, which were made by this function.
void add_number(std::vector<NumberSpan>& spans, uint64_t number);
// Returns true if the numbers of `span`, which may come from a peer, can be those of elements.
bool is_valid(NumberSpan span);

}  // namespace trireme::internal
