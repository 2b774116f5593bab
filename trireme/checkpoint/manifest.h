#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "trireme/checkpoint/saved_state.h"

// The text of a manifest. docs/formats.md specifies it.
namespace trireme::internal {

// Largest manifest that is read.
inline constexpr uint64_t kMostManifestBytes = uint64_t{256} << 20;

// Returns the contents of manifest.json, with the checksum. Names must be UTF-8; other bytes are
// replaced.
std::string to_text(const Manifest& manifest);

// Reads the contents of manifest.json. Checks everything, since a stranger may have written it: the
// checksum, the format version, that shards cover their variables, and that tensors have the right
// length and fill their files. Returns DATA_LOSS if the text is damaged, INVALID_ARGUMENT if it
// contradicts itself, and UNIMPLEMENTED for another version of the format.
absl::StatusOr<Manifest> parse_manifest(std::string_view text);

}  // namespace trireme::internal
