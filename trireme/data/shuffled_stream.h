#pragma once

#include <cstdint>

#include "trireme/data/block.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Return a stream that shuffles the rows or the elements of `input`, which is the stream of the
// step before `step`. `key` decides on the order together with the step's seed.
StreamPtr<Row> make_shuffled(const DatasetStep& step, uint64_t key, StreamPtr<Row> input);
StreamPtr<BlockRow> make_shuffled(const DatasetStep& step, uint64_t key, StreamPtr<BlockRow> input);
StreamPtr<Element> make_shuffled(const DatasetStep& step, uint64_t key, StreamPtr<Element> input);

}  // namespace trireme::internal
