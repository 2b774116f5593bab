#pragma once

#include <cstdint>
#include <memory>

#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Return a stream that shuffles the row numbers or the elements of `input`, which is the stream of
// the step before `step`. `key` decides on the order together with the step's seed.
std::unique_ptr<Stream<int64_t>> make_shuffled(const DatasetStep& step, uint64_t key,
                                               std::unique_ptr<Stream<int64_t>> input);
std::unique_ptr<Stream<Element>> make_shuffled(const DatasetStep& step, uint64_t key,
                                               std::unique_ptr<Stream<Element>> input);

}  // namespace trireme::internal
