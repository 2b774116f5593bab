#include "trireme/data/prefetched.h"

#include <utility>

#include "trireme/data/made_ahead.h"

namespace trireme::internal {

StreamPtr<Element> open_prefetched(int64_t count, StreamPtr<Element> input) {
  return open_made_ahead({.thread_name = "trireme-fetch", .elements = count}, std::move(input),
                         nullptr);
}

}  // namespace trireme::internal
