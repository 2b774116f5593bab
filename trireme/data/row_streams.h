#pragma once

#include <memory>

#include "trireme/data/batch_items.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

// Streams over sources in memory, whose elements are rows.
namespace trireme::internal {

// Gives the row numbers of a source.
StreamPtr<Row> open_rows(int64_t count);
// Return a row of a source as an element, and the elements with the row numbers that it draws.
Element element_of(const DatasetStep& source, Row row);
StreamPtr<Element> open_row_elements(DatasetStepPtr source, StreamPtr<Row> rows);
// Gives batches of rows. Rows that are consecutive are not copied.
StreamPtr<Element> open_row_batches(DatasetStepPtr source, BatchSize batch, StreamPtr<Row> rows);

}  // namespace trireme::internal
