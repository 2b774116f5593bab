#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "trireme/base/executor.h"

namespace trireme::internal {

// Calls body(i) for every i, on this thread and on idle ones of the pool, each in ranges of about
// kRangeBytes, and done() after the last, on whichever thread that is. Called on a thread of the
// pool; waits for nobody.
inline constexpr size_t kRangeBytes = 1 << 20;
void for_each_parallel(ThreadPool& pool, const std::vector<size_t>& bytes,
                       std::function<void(size_t)> body, std::function<void()> done);

}  // namespace trireme::internal
