#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/files.h"
#include "trireme/data/dataset.pb.h"
#include "trireme/data/record_format.h"

namespace trireme::internal {

// Returns the format of CSV files (csv_scan.h) with the columns of a definition, which may come
// from a peer: everything in it is checked. An empty line is passed over, unless lines have one
// field only, because then it is a record whose field is empty, as in tf.data. A byte order mark
// before the first line is passed over.
absl::StatusOr<std::shared_ptr<const RecordFormat>> make_csv_format(
    const proto::DatasetStep::Files& def);

// Returns the names in the first line of a file. Errors name the file.
absl::StatusOr<std::vector<std::string>> read_csv_header(Files& files, const std::string& path,
                                                         char delimiter);

}  // namespace trireme::internal
