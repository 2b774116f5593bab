// Any TFRecord file is split into whole records or has a fault, in one piece and in small pieces
// alike, and its records are decoded or rejected. The first byte chooses the size of the pieces.
// The checksums of a second copy of the file are corrected, so that the fuzzer need not guess them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "trireme/base/crc32c.h"
#include "trireme/base/status.h"
#include "trireme/data/tf_record_format.h"

namespace {

using namespace trireme;            // NOLINT(build/namespaces)
using namespace trireme::internal;  // NOLINT(build/namespaces)

std::shared_ptr<const RecordFormat> make_format() {
  proto::DatasetStep::Files def;
  const auto add = [&](const char* name, c10::ScalarType dtype, int64_t size) {
    proto::ColumnDef* column = def.add_columns();
    column->set_name(name);
    column->set_dtype(static_cast<int32_t>(dtype));
    column->add_sizes(size);
    column->set_missing(0);
    return column;
  };
  add("x", c10::kLong, -1);
  add("y", c10::kFloat, 2);
  add("z", c10::kByte, 4)->set_is_text(true);
  return value_or_throw(make_tf_record_format(def));
}

void correct_checksum(std::string& file, size_t begin, size_t end) {
  const uint32_t crc = crc32c(file.data() + begin, end - begin);
  const uint32_t masked = (crc >> 15 | crc << 17) + 0xa282ead8;
  std::memcpy(file.data() + end, &masked, sizeof masked);
}

void correct_checksums(std::string& file) {
  for (size_t at = 0; file.size() - at >= 16;) {
    uint64_t length;
    std::memcpy(&length, file.data() + at, sizeof length);
    correct_checksum(file, at, at + 8);
    if (length > file.size() - at - 16) return;
    correct_checksum(file, at + 12, at + 12 + length);
    at += 16 + length;
  }
}

void read_file(std::string_view file, size_t piece) {
  static const auto format = make_format();
  const RecordFormat::Whole whole = format->split(file, true, INT64_MAX);
  if (whole.bytes > file.size() || (whole.fault.empty() && whole.bytes < file.size())) std::abort();
  int64_t bad = 0;
  const auto block =
      format->decode({.bytes = file.substr(0, whole.bytes), .records = whole.records},
                     [&](size_t offset, uint64_t line, const std::string& what) {
                       if (offset >= whole.bytes || what.empty()) std::abort();
                       ++bad;
                       return absl::OkStatus();
                     });
  if (!block.ok() || (*block)->rows + bad != whole.records) std::abort();
  // The same records are found if the file comes in pieces.
  size_t bytes = 0, end = 0;
  int64_t records = 0;
  while (end < file.size()) {
    end = std::min(end + piece, file.size());
    const auto part = format->split(file.substr(bytes, end - bytes), end == file.size(), INT64_MAX);
    bytes += part.bytes;
    records += part.records;
    if (!part.fault.empty()) break;
  }
  if (bytes != whole.bytes || records != whole.records) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string file(reinterpret_cast<const char*>(data) + 1, size - 1);
  read_file(file, data[0] + 1);
  correct_checksums(file);
  read_file(file, data[0] + 1);
  return 0;
}
