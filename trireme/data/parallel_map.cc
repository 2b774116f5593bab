#include "trireme/data/parallel_map.h"

#include <utility>

namespace trireme::internal {

// Twice as many elements as threads, so that a thread need not wait for a slower one.
StreamPtr<Element> open_parallel_map(int threads, StreamPtr<Element> input, uint64_t first_number,
                                     NumberedMap map) {
  return open_made_ahead({.thread_name = "trireme-map",
                          .threads = threads,
                          .elements = 2 * threads,
                          .first_number = first_number},
                         std::move(input), std::move(map));
}

}  // namespace trireme::internal
