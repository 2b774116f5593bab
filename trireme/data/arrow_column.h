#pragma once

#include <arrow/type_fwd.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "trireme/data/block.h"
#include "trireme/data/column.h"

namespace trireme::internal {

// Converts an array whose type has been checked. The tensor shares the memory of the array if both
// have the same type and no value is null. `first_row` is the number of the array's first row in
// the file, counted from 0. Errors name the column and the row, but not the file.
absl::StatusOr<BlockColumn> convert_array(const Column& column,
                                          const std::shared_ptr<arrow::Array>& array,
                                          int64_t first_row);

}  // namespace trireme::internal
