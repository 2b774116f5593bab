#include "trireme/checkpoint/manifest_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/safetensors_header.h"
#include "trireme/checkpoint/strict_json.h"

namespace trireme::internal {
namespace {

constexpr size_t kMostDimensions = 64;  // As in LibTorch.
constexpr uint64_t kMostBytes = uint64_t{1} << 62;

absl::Status check_files(const Manifest& manifest) {
  std::set<std::string> names;
  for (const SavedFile& file : manifest.files) {
    if (file.name.empty() || file.name[0] == '.' || file.name == "manifest.json" ||
        file.name.find_first_of(std::string("/\0", 2)) != std::string::npos) {
      return invalid_argument(absl::StrCat("'", file.name, "' is not a valid name of a file"));
    }
    if (!names.insert(file.name).second) {
      return invalid_argument(absl::StrCat("file '", file.name, "' is listed twice"));
    }
    if (file.header_bytes < kSafetensorsPrefix || file.header_bytes > file.bytes ||
        file.header_bytes > kSafetensorsPrefix + kMostSafetensorsJson || file.bytes > kMostBytes) {
      return invalid_argument(absl::StrCat("file '", file.name, "' has an impossible length"));
    }
  }
  return absl::OkStatus();
}

// Checks that the bytes of a variable can be counted.
absl::Status check_sizes(const SavedVariable& variable) {
  bool valid = variable.sizes.size() <= kMostDimensions;
  uint64_t bytes = c10::elementSize(variable.dtype);
  for (const int64_t size : variable.sizes) {
    valid = valid && size >= 0;
    // A dimension of zero must not hide an overflow of the others: strides are products, too.
    if (valid && size > 0) {
      valid = !__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) &&
              bytes <= kMostBytes;
    }
  }
  return valid ? absl::OkStatus() : invalid_argument("has sizes that are not possible");
}

absl::Status check_tensor(const Manifest& manifest, const SavedTensor& tensor, uint64_t bytes) {
  const auto fault = [&](const char* text) {
    return invalid_argument(absl::StrCat("tensor '", tensor.name, "' ", text));
  };
  if (tensor.name.empty()) return fault("has no name");
  if (tensor.file < 0 || static_cast<size_t>(tensor.file) >= manifest.files.size()) {
    return fault("is in a file that is not listed");
  }
  if (tensor.bytes != bytes) return fault("does not have the length of its rows");
  const SavedFile& file = manifest.files[static_cast<size_t>(tensor.file)];
  if (tensor.offset < file.header_bytes || tensor.offset > file.bytes ||
      tensor.bytes > file.bytes - tensor.offset) {
    return fault("does not lie inside its file");
  }
  return absl::OkStatus();
}

absl::Status check_variable(const Manifest& manifest, const SavedVariable& variable) {
  if (safetensors_dtype(variable.dtype).empty()) {
    return invalid_argument("has a dtype that safetensors files do not have");
  }
  TRIREME_RETURN_IF_ERROR(check_sizes(variable));
  const std::set<std::string> slots(variable.slots.begin(), variable.slots.end());
  if (slots.size() != variable.slots.size() || slots.contains("")) {
    return invalid_argument("has slots without a name or with the same name");
  }
  if (variable.shards.empty()) return invalid_argument("has no shards");
  int64_t row = 0;
  for (const SavedShard& shard : variable.shards) {
    if (shard.first != row || shard.count < 0 || shard.count > variable.rows() - row) {
      return invalid_argument("has shards that do not cover its rows in order");
    }
    row += shard.count;
    if (shard.slots.size() != variable.slots.size()) {
      return invalid_argument("has a shard with another number of slots");
    }
    if (!std::isfinite(shard.step) || shard.step < 0) return invalid_argument("has a wrong step");
    const uint64_t bytes = static_cast<uint64_t>(shard.count) * variable.row_bytes();
    TRIREME_RETURN_IF_ERROR(check_tensor(manifest, shard.contents, bytes));
    for (const SavedTensor& slot : shard.slots) {
      TRIREME_RETURN_IF_ERROR(check_tensor(manifest, slot, bytes));
    }
  }
  if (row != variable.rows()) return invalid_argument("has shards that do not cover its rows");
  return absl::OkStatus();
}

absl::Status check_iterator(const SavedIterator& iterator) {
  if (iterator.positions.empty() || (!iterator.per_worker && iterator.positions.size() != 1)) {
    return invalid_argument("has a wrong number of positions");
  }
  for (const SavedPosition& position : iterator.positions) {
    uint64_t least = 0;
    for (const uint64_t number : position.returned) {
      if (number < least || number >= position.next) {
        return invalid_argument("has returned elements that are not ascending, or were not drawn");
      }
      least = number + 1;
    }
  }
  return absl::OkStatus();
}

// Checks that the tensors fill their files: then none overlaps another, and no byte is unchecked.
absl::Status check_coverage(const Manifest& manifest) {
  std::vector<uint64_t> ends;
  for (const SavedFile& file : manifest.files) ends.push_back(file.header_bytes);
  for (const TensorOfManifest& entry : tensors_of(manifest)) {
    uint64_t& end = ends[static_cast<size_t>(entry.tensor->file)];
    if (entry.tensor->offset != end) {
      return invalid_argument(absl::StrCat("tensor '", entry.tensor->name,
                                           "' overlaps another one, or has a gap before it"));
    }
    end += entry.tensor->bytes;
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] != manifest.files[i].bytes) {
      return invalid_argument(
          absl::StrCat("the tensors do not fill file '", manifest.files[i].name, "'"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_manifest(const Manifest& manifest) {
  TRIREME_RETURN_IF_ERROR(check_files(manifest));
  std::set<std::string> names;
  for (const SavedVariable& variable : manifest.variables) {
    absl::Status status = check_variable(manifest, variable);
    if (variable.name.empty()) status = invalid_argument("has no name");
    if (!names.insert(variable.name).second) status = invalid_argument("is listed twice");
    if (!status.ok()) {
      return invalid_argument(absl::StrCat("variable '", variable.name, "' ", status.message()));
    }
  }
  names.clear();
  for (const SavedIterator& iterator : manifest.iterators) {
    absl::Status status = check_iterator(iterator);
    if (!names.insert(iterator.name).second) status = invalid_argument("is listed twice");
    if (!status.ok()) {
      return invalid_argument(absl::StrCat("iterator '", iterator.name, "' ", status.message()));
    }
  }
  TRIREME_RETURN_IF_ERROR(check_texts(manifest.texts));
  return check_coverage(manifest);
}

absl::Status check_texts(const std::map<std::string, std::string>& texts) {
  size_t bytes = 0;
  for (const auto& [name, text] : texts) {
    const bool printable = std::none_of(name.begin(), name.end(),
                                        [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; });
    if (name.empty() || name.size() > kMostTextNameBytes || !printable || !is_utf8(name)) {
      return invalid_argument(absl::StrCat("'", name, "' is not a valid name of a text; give 1 to ",
                                           kMostTextNameBytes, " bytes of printable UTF-8"));
    }
    if (!is_utf8(text)) {
      return invalid_argument(absl::StrCat("text '", name, "' is not UTF-8"));
    }
    bytes += text.size();
    if (bytes > kMostTextBytes) {
      return invalid_argument(absl::StrCat("text '", name, "' makes the texts ", bytes,
                                           " bytes long, and a checkpoint has room for ",
                                           kMostTextBytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace trireme::internal
