#pragma once

#include <memory>

#include "trireme/data/batch_items.h"
#include "trireme/data/block.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"
#include "trireme/observe/metrics.h"

// Streams over files, whose records are rows of blocks.
namespace trireme::internal {

// Gives the records of the files of a source, one file after the other. `bad` counts records that
// are left out, and may be null.
StreamPtr<BlockRow> open_file_rows(DatasetStepPtr source, Counter* bad);
// Gives the records of several files at a time, `block_length` of each in turn.
StreamPtr<BlockRow> open_interleaved(DatasetStepPtr source, int64_t cycle, int64_t block_length,
                                     Counter* bad);
// Gives the same records from blocks that hold few others. For records that are spread over many
// blocks and are kept for long: each would keep a whole block in memory.
StreamPtr<BlockRow> open_gathered(StreamPtr<BlockRow> rows);
// Return a record as an element, and all records as elements.
Element element_of(const BlockRow& row);
StreamPtr<Element> open_block_elements(StreamPtr<BlockRow> rows);
// Gives batches of records, which all have the same shapes.
StreamPtr<Element> open_block_batches(BatchSize batch, StreamPtr<BlockRow> rows);

}  // namespace trireme::internal
