#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

// The header of a safetensors file: eight bytes with the length of the JSON, little-endian, and the
// JSON that names each tensor with its dtype, shape and place.
namespace trireme::internal {

// A tensor in the header of a file.
struct SafetensorsEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  uint64_t begin = 0;  // Offset of the first byte from the begin of the file.
  uint64_t end = 0;    // Offset behind the last byte.

  bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;        // In the order of their offsets.
  std::map<std::string, std::string> metadata;  // The entry "__metadata__".
  uint64_t bytes = 0;                           // Length of the header; the data begins here.
};

// Length of the field before the JSON.
inline constexpr uint64_t kSafetensorsPrefix = 8;
// Largest JSON that is read, as in Python's library.
inline constexpr uint64_t kMostSafetensorsJson = 100'000'000;

// Returns the length of the header, with its prefix. `prefix` are the first eight bytes of a file
// of `file_bytes`. Returns DATA_LOSS if the header would be longer than the file or than allowed.
absl::StatusOr<uint64_t> safetensors_header_bytes(std::string_view prefix, uint64_t file_bytes);

// Reads a header with its prefix. Strict: the tensors must fill the file without gaps, and each one
// must have as many bytes as its shape says. The memory that it takes is in proportion to the text.
// Returns DATA_LOSS for a header that is not valid.
absl::StatusOr<SafetensorsHeader> parse_safetensors_header(std::string_view header,
                                                           uint64_t file_bytes);

// Returns the JSON of a header, without prefix and padding. Offsets in `tensors` are relative to
// the data. Names must be UTF-8; other bytes are replaced.
std::string safetensors_json(const std::vector<SafetensorsEntry>& tensors,
                             const std::map<std::string, std::string>& metadata);

// Returns the name of a dtype in safetensors, for example "F32", or an empty string if it has none.
std::string safetensors_dtype(c10::ScalarType dtype);

}  // namespace trireme::internal
