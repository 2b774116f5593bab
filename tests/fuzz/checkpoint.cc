// Reads the two texts of a checkpoint that come from outside. The first byte chooses: 'm' is the
// inner object of a manifest, which gets the right checksum, 'r' a manifest as it is in the file,
// 's' the JSON of a safetensors header, which gets the right length, and 'h' a header with its
// length. Texts that are accepted are the same after a round trip.
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "trireme/base/crc32c.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/checkpoint/safetensors_header.h"

namespace {

using namespace trireme::internal;  // NOLINT(build/namespaces)

void read_manifest(std::string_view text) {
  const auto manifest = parse_manifest(text);
  if (!manifest.ok()) return;
  const std::string written = to_text(*manifest);
  const auto again = parse_manifest(written);
  if (!again.ok() || to_text(*again) != written) std::abort();
}

void read_header(std::string_view header, uint64_t data_bytes) {
  const auto read = parse_safetensors_header(header, header.size() + data_bytes);
  if (!read.ok()) return;
  std::vector<SafetensorsEntry> entries = read->tensors;
  for (SafetensorsEntry& entry : entries) {
    entry.begin -= read->bytes;
    entry.end -= read->bytes;
  }
  const std::string json = safetensors_json(entries, read->metadata);
  std::string written;
  for (int i = 0; i < 8; ++i)
    written.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * i)));
  written += json;
  const auto again = parse_safetensors_header(written, written.size() + data_bytes);
  if (!again.ok() || again->metadata != read->metadata ||
      again->tensors.size() != read->tensors.size()) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'm':
      read_manifest(absl::StrFormat("{\"crc32c\":\"%08x\",\"manifest\":%s}\n",
                                    trireme::crc32c(text.data(), text.size()), text));
      break;
    case 'r':
      read_manifest(text);
      break;
    case 's': {
      // The first byte is the number of bytes behind the header.
      const std::string json = text.substr(1);
      std::string header;
      for (int i = 0; i < 8; ++i) {
        header.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * i)));
      }
      read_header(header + json, static_cast<uint8_t>(text[0]));
      break;
    }
    default:
      read_header(text, 4);
  }
  return 0;
}
