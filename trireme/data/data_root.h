#pragma once

#include <string>

#include "absl/status/status.h"
#include "trireme/data/dataset.pb.h"

namespace trireme::internal {

// Replaces the names of the files that a peer's dataset reads with absolute paths without symbolic
// links. `root` is the server's data root, the folder that relative names refer to. If it is "/",
// all files may be read, and relative names refer to the working directory. Returns
// FAILED_PRECONDITION if the dataset reads files and `root` is empty or cannot be used, and
// PERMISSION_DENIED if a file is not inside of it. A file that does not exist is not an error yet.
absl::Status resolve_files(proto::DatasetDef& def, const std::string& root);

}  // namespace trireme::internal
