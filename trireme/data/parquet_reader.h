#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/files.h"
#include "trireme/data/block.h"
#include "trireme/data/column.h"
#include "trireme/data/dataset.pb.h"

namespace trireme::internal {

// Opens a Parquet file. Its columns are converted to the dtypes of the definition: numbers to any
// type that can hold them, text and bytes to columns of text, lists of numbers to columns with
// sizes. Passing over rows reads no row group that is passed over as a whole. Returns UNIMPLEMENTED
// if Trireme was built without Arrow, INVALID_ARGUMENT if the file does not have the columns, and
// DATA_LOSS if it is damaged. The definition must have been checked.
absl::StatusOr<std::unique_ptr<BlockReader>> open_parquet(const proto::DatasetStep::Files& def,
                                                          Files& files, const std::string& path);

// Returns all columns of a Parquet file that hold one number in each row, or a list of numbers
// whose length is part of the type, each with the dtype that holds its numbers. Other columns are
// left out.
absl::StatusOr<std::vector<Column>> parquet_columns(Files& files, const std::string& path);

}  // namespace trireme::internal
