#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace trireme::internal {

// A small file as text. An error names the file and why it cannot be read.
absl::StatusOr<std::string> read_text_file(const std::string& path);

}  // namespace trireme::internal
