// Any bytes are read as CSV without a crash, and the same records come out wherever the file is cut
// into pieces.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/csv_format.h"

namespace {

using namespace trireme;
using namespace trireme::internal;

constexpr size_t kChoices = 7;  // bytes that choose columns, header, delimiter and cut

class FuzzFile : public InputFile {
 public:
  explicit FuzzFile(std::string_view bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  absl::Status read(uint64_t offset, void* data, size_t bytes) override {
    std::copy_n(bytes_.data() + offset, bytes, static_cast<char*>(data));
    return absl::OkStatus();
  }

 private:
  const std::string_view bytes_;
};

// Returns a definition with up to five fields.
proto::DatasetStep::Files chosen_def(const uint8_t* choices) {
  constexpr c10::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kLong,
                                         at::kInt,   at::kByte,   at::kBool};
  proto::DatasetStep::Files def;
  def.mutable_csv()->set_delimiter(choices[0] % 2 == 0 ? "," : "1");
  def.mutable_csv()->set_has_header(choices[0] % 4 >= 2);
  for (int i = 1; i <= 1 + choices[0] / 4 % 5; ++i) {
    const int kind = choices[i] % 9;
    if (kind == 8) {
      def.mutable_csv()->add_columns(0);
      continue;
    }
    proto::ColumnDef& column = *def.add_columns();
    column.set_name(absl::StrCat("c", i));
    def.mutable_csv()->add_columns(def.columns_size());
    column.set_dtype(static_cast<int32_t>(kind < 6 ? kDtypes[kind] : at::kByte));
    column.set_is_text(kind >= 6);
    if (kind >= 6) {
      column.add_sizes(kind == 6 ? -1 : 1 + choices[i] / 9);
    } else if (choices[i] >= 128) {
      column.set_missing(1);
    }
  }
  return def;
}

// Returns all that was read, and faults, as text.
std::string read_pieces(const RecordFormat& format, std::string_view text, size_t cut) {
  std::string read, bad_records;
  size_t begin = 0;
  uint64_t line = 1;
  for (const size_t end : {cut, text.size()}) {
    // A copy, so that AddressSanitizer sees reads beyond it.
    const std::vector<char> piece(text.begin() + begin, text.begin() + end);
    const auto whole =
        format.split({piece.data(), piece.size()}, end == text.size(), piece.size() + 1);
    const std::vector<char> records(piece.begin(), piece.begin() + whole.bytes);
    const auto bad = [&](size_t offset, uint64_t at, const std::string& what) {
      absl::StrAppend(&bad_records, begin + offset, " ", at, " ", what, "\n");
      return absl::OkStatus();
    };
    const RawRecords raw{{records.data(), records.size()}, begin, line, whole.records};
    const BlockPtr block = value_or_throw(format.decode(raw, bad));
    for (int64_t row = 0; row < block->rows; ++row) {
      for (const BlockColumn& column : block->columns) {
        const at::Tensor values =
            column.offsets.empty()
                ? column.values[row]
                : column.values.narrow(0, column.offsets[row],
                                       column.offsets[row + 1] - column.offsets[row]);
        if (values.numel() == 0) continue;
        read.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
      }
      read += '\n';
    }
    absl::StrAppend(&bad_records, end == text.size() ? whole.fault : "");
    begin += whole.bytes;
    line += whole.lines;
  }
  return absl::StrCat(read, bad_records, " ", begin, " ", line);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kChoices) return 0;
  const auto format = make_csv_format(chosen_def(data));
  if (!format.ok()) __builtin_trap();
  std::string_view text(reinterpret_cast<const char*>(data) + kChoices, size - kChoices);
  FuzzFile file(text);
  const auto head = (*format)->read_head(file);
  if (!head.ok()) return 0;
  text.remove_prefix(head->bytes);
  const size_t cut = text.size() * data[kChoices - 1] / 256;
  if (read_pieces(**format, text, cut) != read_pieces(**format, text, 0)) __builtin_trap();
  return 0;
}
