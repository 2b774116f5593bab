#pragma once

#include <cstdint>
#include <string>

#include "trireme/model/logs.h"

namespace trireme::internal {

// Returns a path with the names in braces replaced: {epoch} by a number and all others by figures.
// A name may have a format as in Python: {epoch:03}, {val_loss:.2f}. Throws Error if a brace has no
// counterpart, if a format is not valid, or if there is no such figure; the error lists the names.
std::string format_checkpoint_path(const std::string& pattern, int64_t epoch, const Logs& logs);

}  // namespace trireme::internal
