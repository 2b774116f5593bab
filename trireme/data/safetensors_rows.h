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

// Opens a safetensors file as rows: row i has row i, along axis 0, of each tensor that is a column
// of the definition. Returns INVALID_ARGUMENT if the file does not have these tensors with these
// dtypes and shapes, or if they have different numbers of rows, and DATA_LOSS if the file is
// damaged. Passing over rows reads nothing.
absl::StatusOr<std::unique_ptr<BlockReader>> open_safetensors(const proto::DatasetStep::Files& def,
                                                              Files& files,
                                                              const std::string& path);

// Returns all tensors of a safetensors file as columns, sorted by name. Returns INVALID_ARGUMENT if
// they do not all have the same number of rows.
absl::StatusOr<std::vector<Column>> safetensors_columns(Files& files, const std::string& path);

}  // namespace trireme::internal
