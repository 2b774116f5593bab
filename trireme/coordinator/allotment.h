#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/used_numbers.h"

namespace trireme::internal {

// The elements that one draw of a closure takes, by their numbers, from a worker's iterator.
struct AllottedElements {
  int worker = 0;        // Index of the worker whose iterator it is.
  uint64_t edition = 0;  // Edition of the iterator.
  std::vector<NumberSpan> numbers;

  uint64_t count() const {
    uint64_t count = 0;
    for (const NumberSpan& span : numbers) count += span.count;
    return count;
  }
};

}  // namespace trireme::internal
