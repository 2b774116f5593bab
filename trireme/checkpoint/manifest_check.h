#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "trireme/checkpoint/saved_state.h"

namespace trireme::internal {

// Returns INVALID_ARGUMENT, naming the part, if a manifest contradicts itself. Uses no more memory
// than the manifest has.
absl::Status check_manifest(const Manifest& manifest);

// Largest number of bytes of all texts of a manifest together, and of the name of a text.
inline constexpr size_t kMostTextBytes = size_t{16} << 20;
inline constexpr size_t kMostTextNameBytes = 256;

// Returns INVALID_ARGUMENT, naming the text, if a manifest cannot have these texts.
absl::Status check_texts(const std::map<std::string, std::string>& texts);

}  // namespace trireme::internal
