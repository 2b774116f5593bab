#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "trireme/base/executor.h"

namespace trireme::internal {

// Calls body(i) once for every index i of `bytes`, and then done() on the thread that finished
// last. The indices are divided into ranges of about kRangeBytes, where bytes[i] is the work of
// body(i). This thread works on ranges, and so do idle threads of the pool. Called on a thread of
// the pool. Does not wait for the other threads, so it may return before done() is called.
inline constexpr size_t kRangeBytes = 1 << 20;
void for_each_parallel(ThreadPool& pool, const std::vector<size_t>& bytes,
                       std::function<void(size_t)> body, std::function<void()> done);

}  // namespace trireme::internal
