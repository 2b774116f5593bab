#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace trireme::internal {

// Returns the contents of a small file. An error names the file and the reason.
absl::StatusOr<std::string> read_text_file(const std::string& path);

}  // namespace trireme::internal
