#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/column.h"
#include "trireme/data/csv_format.h"

// Reads CSV in the tests of its format.
namespace trireme::internal {

using CsvTexts = std::vector<std::string>;
using CsvFiles = proto::DatasetStep::Files;

// Returns a definition without a header, in which each column takes as many fields as it needs.
inline CsvFiles csv_def(const std::vector<Column>& columns, const std::string& delimiter = ",") {
  CsvFiles def;
  def.mutable_csv()->set_delimiter(delimiter);
  for (const Column& column : columns) {
    proto::ColumnDef& made = *def.add_columns();
    made.set_name(column.name);
    made.set_dtype(static_cast<int32_t>(column.dtype));
    made.set_is_text(column.is_text);
    if (column.missing) made.set_missing(*column.missing);
    int64_t fields = 1;
    for (const int64_t size : column.sizes) {
      made.add_sizes(size);
      if (!column.is_text) fields *= size;
    }
    for (int64_t i = 0; i < fields; ++i) def.mutable_csv()->add_columns(def.columns_size());
  }
  return def;
}

inline std::shared_ptr<const RecordFormat> csv_format_of(const CsvFiles& def) {
  return value_or_throw(make_csv_format(def));
}

// Returns a row of a column in readable form.
inline std::string shown_csv_row(const BlockColumn& column, int64_t row) {
  if (!column.offsets.empty()) {
    const char* bytes = reinterpret_cast<const char*>(column.values.const_data_ptr<uint8_t>());
    return std::string(bytes + column.offsets[row], bytes + column.offsets[row + 1]);
  }
  const at::Tensor values = column.values[row].contiguous().view(-1);
  std::string shown;
  for (int64_t i = 0; i < values.numel(); ++i) {
    const bool is_byte = values.scalar_type() == at::kByte;
    const double number = values[i].item<double>();
    if (is_byte && number == 0) break;
    if (is_byte) {
      shown += static_cast<char>(number);
    } else {
      absl::StrAppend(&shown, i > 0 ? " " : "", number);
    }
  }
  return shown;
}

// Everything that was read from some bytes.
struct DecodedCsv {
  std::vector<CsvTexts> rows;
  CsvTexts bad;  // "line 2, byte 10: …"
  std::string fault;
  int64_t lines = 0;
  int64_t counted = 0;  // records
};

// Reads bytes as a file is read, in pieces that end at `cuts`, and at most `most` records at a
// time.
inline DecodedCsv decode_csv_pieces(const RecordFormat& format, const std::string& text,
                                    const std::vector<size_t>& cuts, int64_t most = 1'000'000) {
  DecodedCsv decoded;
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : text.size();
    // A copy, so that AddressSanitizer sees reads beyond it.
    const std::vector<char> piece(text.begin() + begin, text.begin() + end);
    std::string_view left(piece.data(), piece.size());
    for (;;) {
      const auto whole = format.split(left, i == cuts.size(), most);
      decoded.fault = whole.fault;
      if (whole.bytes == 0) break;
      const std::vector<char> records(left.begin(), left.begin() + whole.bytes);
      const RawRecords raw{{records.data(), records.size()},
                           begin,
                           static_cast<uint64_t>(decoded.lines) + 1,
                           whole.records};
      const auto bad = [&](size_t offset, uint64_t line, const std::string& what) {
        decoded.bad.push_back(absl::StrCat("line ", line, ", byte ", begin + offset, ": ", what));
        return absl::OkStatus();
      };
      const BlockPtr block = value_or_throw(format.decode(raw, bad));
      for (int64_t row = 0; row < block->rows; ++row) {
        CsvTexts& shown = decoded.rows.emplace_back();
        for (const BlockColumn& column : block->columns)
          shown.push_back(shown_csv_row(column, row));
      }
      decoded.lines += whole.lines;
      decoded.counted += whole.records;
      begin += whole.bytes;
      left.remove_prefix(whole.bytes);
    }
  }
  EXPECT_TRUE(begin == text.size() || !decoded.fault.empty()) << begin;
  return decoded;
}

}  // namespace trireme::internal
