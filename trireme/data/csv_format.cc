// Records are decoded in batches that fit into the cache, and within a batch field by field: the
// places of all fields are found first, so that the loop over one field of all records knows its
// type, and the processor can work on several records at a time.
#include "trireme/data/csv_format.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/csv_plan.h"
#include "trireme/data/csv_scan.h"
#include "trireme/data/number_text.h"
#include "trireme/data/text_rows.h"

namespace trireme::internal {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kMostHeaderBytes = size_t{16} << 20;
constexpr size_t kBatchRows = 64;
constexpr size_t kBatchFields = 4096;

// Returns a text for a message.
std::string quoted_field(std::string_view text) {
  constexpr size_t kMost = 40;
  const std::string shown =
      absl::CHexEscape(absl::string_view(text.data(), std::min(text.size(), kMost)));
  return absl::StrCat("'", shown, text.size() > kMost ? "…'" : "'");
}

struct CsvHead {
  RecordFormat::Whole whole;
  std::vector<std::string> names;
};

// Reads the byte order mark and, if `has_names`, the first line.
absl::StatusOr<CsvHead> read_csv_head(InputFile& file, char delimiter, bool has_names) {
  CsvHead head;
  std::string bytes;
  for (size_t most = size_t{64} << 10;; most *= 4) {
    bytes.resize(std::min<uint64_t>(most, file.size()));
    TRIREME_RETURN_IF_ERROR(file.read(0, bytes.data(), bytes.size()));
    const bool is_end = bytes.size() == file.size();
    const size_t begin = bytes.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
    head.whole.bytes = begin;
    if (!has_names) return head;
    if (begin == bytes.size()) {
      return invalid_argument("the file is empty, expected a line with the names of the fields");
    }
    const auto record = scan_record(bytes, begin, is_end, delimiter);
    if (!record) {
      if (most < kMostHeaderBytes) continue;
      return invalid_argument(
          absl::StrCat("the first line, which has the names of the fields, has "
                       "more than ",
                       most, " bytes; is this a CSV file?"));
    }
    if (record->is_open || record->fault != nullptr) {
      return invalid_argument(
          absl::StrCat("the first line, which has the names of the fields, ",
                       record->is_open ? "has a quote that is not closed" : record->fault));
    }
    std::vector<uint32_t> edges(record->fields + 1);
    scan_record(bytes, begin, is_end, delimiter, edges.data(), record->fields);
    std::string room;
    for (size_t i = 0; i < record->fields; ++i) {
      const std::string_view field(bytes.data() + edges[i], edges[i + 1] - edges[i] - 1);
      head.names.emplace_back(field_value(field, room));
    }
    head.whole.bytes = record->end;
    head.whole.lines = std::count(bytes.begin(), bytes.begin() + record->end, '\n');
    return head;
  }
}

// Decodes the records of one piece.
class CsvDecoder {
 public:
  CsvDecoder(const CsvPlan& plan, const RawRecords& raw, const RecordFormat::BadRecord& bad)
      : plan_(plan),
        raw_(raw),
        bad_(bad),
        scanner_(raw.bytes, plan.delimiter, plan.field_count),
        row_edges_(plan.field_count + 1),
        batch_rows_(std::clamp(kBatchFields / plan.field_count, size_t{1}, kBatchRows)),
        edges_(batch_rows_ * row_edges_) {}

  absl::StatusOr<BlockPtr> decode();

 private:
  // Memory of a column; one of the two.
  struct Column {
    at::Tensor values;
    char* data = nullptr;
    std::optional<TextRows> texts;
  };

  void allocate();
  absl::Status decode_batch();
  void decode_field(const CsvPlan::Field& field);
  template <typename T>
  void decode_numbers(const CsvPlan::Field& field);
  template <typename T>
  bool decode_number(std::string_view text, const CsvPlan::Column& column, T& to);
  void decode_texts(const CsvPlan::Field& field);
  absl::Status drop_faulty_rows();
  absl::Status report(size_t begin, const std::string& what);
  std::string describe_fault(const CsvPlan::Field& field, std::string_view text);

  // Returns a field of a record of the batch, as it is in the file.
  std::string_view text_of_field(size_t row, size_t field) const {
    const uint32_t* edges = edges_.data() + row * row_edges_ + field;
    return raw_.bytes.substr(edges[0], edges[1] - edges[0] - 1);
  }
  void note_fault(size_t row, const CsvPlan::Field& field) {
    if (faults_[row] == nullptr) faults_[row] = &field;
    has_faults_ = true;
  }

  const CsvPlan& plan_;
  const RawRecords& raw_;
  const RecordFormat::BadRecord& bad_;
  CsvScanner scanner_;
  std::vector<Column> columns_;
  int64_t rows_ = 0;  // rows that are decoded

  // The batch: the records after these rows, the places of their fields (CsvScanner::next()), and
  // for each record the first field that is not valid, or null.
  const size_t row_edges_;
  const size_t batch_rows_;
  size_t batch_size_ = 0;
  std::vector<uint32_t> edges_;
  std::vector<const CsvPlan::Field*> faults_;
  bool has_faults_ = false;

  std::string room_;
  // Line ends before a place, which was the beginning of the last record that was reported.
  size_t counted_ = 0;
  uint64_t lines_ = 0;
};

absl::StatusOr<BlockPtr> CsvDecoder::decode() {
  if (raw_.bytes.size() > std::numeric_limits<uint32_t>::max() - kReadAhead ||
      raw_.records > records_per_block(plan_.row_bytes)) {
    return make_status(ErrorCode::kInternal, "there are more records than split() gives at a time");
  }
  allocate();
  using Found = CsvScanner::Found;
  for (Found found = Found::kRow; found != Found::kEnd;) {
    batch_size_ = 0;
    do {
      found = scanner_.next(edges_.data() + batch_size_ * row_edges_);
      if (found == Found::kRow) ++batch_size_;
    } while (found == Found::kRow && batch_size_ < batch_rows_);
    if (rows_ + static_cast<int64_t>(batch_size_) > raw_.records) {
      return make_status(ErrorCode::kInternal, "there are more records than were counted");
    }
    TRIREME_RETURN_IF_ERROR(decode_batch());
    if (found == Found::kFault) {
      TRIREME_RETURN_IF_ERROR(report(scanner_.begin(), scanner_.fault()));
    }
  }
  auto block = std::make_shared<Block>();
  block->rows = rows_;
  for (Column& column : columns_) {
    block->columns.push_back(column.texts ? column.texts->finish(rows_)
                                          : BlockColumn{column.values.narrow(0, 0, rows_), {}});
  }
  return block;
}

void CsvDecoder::allocate() {
  columns_.reserve(plan_.columns.size());
  for (const CsvPlan::Column& column : plan_.columns) {
    Column& made = columns_.emplace_back();
    if (column.is_text) {
      made.texts.emplace(column.width, raw_.records, raw_.bytes.size());
      continue;
    }
    std::vector<int64_t> sizes = {raw_.records};
    sizes.insert(sizes.end(), column.sizes.begin(), column.sizes.end());
    made.values = at::empty(sizes, column.dtype);
    made.data = static_cast<char*>(made.values.mutable_data_ptr());
  }
}

// Decodes the records of the batch, and reports and leaves out the ones that are not valid.
absl::Status CsvDecoder::decode_batch() {
  faults_.assign(batch_size_, nullptr);
  has_faults_ = false;
  for (const CsvPlan::Field& field : plan_.fields) decode_field(field);
  if (has_faults_) {
    TRIREME_RETURN_IF_ERROR(drop_faulty_rows());
    for (const CsvPlan::Field& field : plan_.fields) decode_field(field);
  }
  rows_ += static_cast<int64_t>(batch_size_);
  return absl::OkStatus();
}

void CsvDecoder::decode_field(const CsvPlan::Field& field) {
  const CsvPlan::Column& column = plan_.columns[field.column];
  if (column.is_text) return decode_texts(field);
  switch (column.dtype) {
    case at::kFloat:
      return decode_numbers<float>(field);
    case at::kDouble:
      return decode_numbers<double>(field);
    case at::kLong:
      return decode_numbers<int64_t>(field);
    case at::kInt:
      return decode_numbers<int32_t>(field);
    case at::kByte:
      return decode_numbers<uint8_t>(field);
    default:  // make_csv_plan() accepts no others.
      return decode_numbers<bool>(field);
  }
}

template <typename T>
void CsvDecoder::decode_numbers(const CsvPlan::Field& field) {
  const CsvPlan::Column& column = plan_.columns[field.column];
  const int64_t width = column.width;
  T* to = reinterpret_cast<T*>(columns_[field.column].data) + rows_ * width + field.slot;
  const uint32_t* edges = edges_.data() + field.number;
  const std::string_view bytes = raw_.bytes;
  const size_t rows = batch_size_, row_edges = row_edges_;
  for (size_t row = 0; row < rows; ++row, to += width, edges += row_edges) {
    const char* const text = bytes.data() + edges[0];
    const size_t length = edges[1] - edges[0] - 1;
    T value;
    if (bytes.size() - edges[0] >= kReadAhead && parse_short(text, length, value)) [[likely]] {
      *to = value;
    } else if (!decode_number({text, length}, column, *to)) {
      note_fault(row, field);
    }
  }
}

template <typename T>
bool CsvDecoder::decode_number(std::string_view text, const CsvPlan::Column& column, T& to) {
  const std::string_view value = field_value(text, room_);
  if (!value.empty() || !column.missing) return parse_number(value, to);
  to = static_cast<T>(*column.missing);
  return true;
}

void CsvDecoder::decode_texts(const CsvPlan::Field& field) {
  TextRows& texts = *columns_[field.column].texts;
  const char* const end = raw_.bytes.data() + raw_.bytes.size();
  for (size_t row = 0; row < batch_size_; ++row) {
    std::string_view text = text_of_field(row, field.number);
    bool can_read_ahead = end - text.data() > static_cast<ptrdiff_t>(kReadAhead);
    if (!text.empty() && text[0] == '"') {
      text = field_value(text, room_);
      can_read_ahead = can_read_ahead && text.data() != room_.data();
    }
    if (texts.fits(text.size())) {
      texts.set(rows_ + static_cast<int64_t>(row), text, can_read_ahead);
    } else {
      note_fault(row, field);
    }
  }
}

absl::Status CsvDecoder::drop_faulty_rows() {
  size_t kept = 0;
  for (size_t row = 0; row < batch_size_; ++row) {
    const uint32_t* const edges = edges_.data() + row * row_edges_;
    if (const CsvPlan::Field* field = faults_[row]) {
      const std::string what = describe_fault(*field, text_of_field(row, field->number));
      TRIREME_RETURN_IF_ERROR(report(edges[0], what));
      continue;
    }
    std::copy_n(edges, row_edges_, edges_.data() + kept * row_edges_);
    ++kept;
  }
  batch_size_ = kept;
  return absl::OkStatus();
}

absl::Status CsvDecoder::report(size_t begin, const std::string& what) {
  const auto first = raw_.bytes.begin();
  lines_ += std::count(first + counted_, first + begin, '\n');
  counted_ = begin;
  return bad_(begin, raw_.first_line + lines_, what);
}

std::string CsvDecoder::describe_fault(const CsvPlan::Field& field, std::string_view text) {
  std::string name = absl::StrCat("field ", field.number + 1);
  if (!field.name.empty()) absl::StrAppend(&name, " ('", field.name, "')");
  const CsvPlan::Column& column = plan_.columns[field.column];
  const std::string_view value = field_value(text, room_);
  if (column.is_text) {
    return absl::StrCat(name, ": text of ", value.size(), " bytes does not fit into ", column.width,
                        "; give the column more bytes");
  }
  const std::string dtype = dtype_with_article(column.dtype);
  if (value.empty()) {
    return absl::StrCat(name, " is empty, expected ", dtype,
                        "; Column::missing can stand in for it");
  }
  return absl::StrCat(name, ": ", quoted_field(value), " is not ", dtype);
}

class CsvFormat : public RecordFormat {
 public:
  explicit CsvFormat(CsvPlan plan) : plan_(std::move(plan)) {}

  absl::StatusOr<Whole> read_head(InputFile& file) const override;
  Whole split(std::string_view bytes, bool is_end, int64_t most) const override;
  absl::StatusOr<BlockPtr> decode(const RawRecords& raw, const BadRecord& bad) const override {
    return CsvDecoder(plan_, raw, bad).decode();
  }

 private:
  const CsvPlan plan_;
};

absl::StatusOr<RecordFormat::Whole> CsvFormat::read_head(InputFile& file) const {
  TRIREME_ASSIGN_OR_RETURN(const CsvHead head,
                           read_csv_head(file, plan_.delimiter, plan_.has_header));
  const std::vector<std::string>& expected = plan_.header;
  if (expected.empty()) return head.whole;
  for (size_t i = 0; i < std::min(expected.size(), head.names.size()); ++i) {
    if (head.names[i] != expected[i]) {
      return invalid_argument(absl::StrCat("field ", i + 1, " of the first line is named ",
                                           quoted_field(head.names[i]), ", expected ",
                                           quoted_field(expected[i])));
    }
  }
  if (head.names.size() != expected.size()) {
    return invalid_argument(absl::StrCat("the first line has ", head.names.size(),
                                         " names, expected ", expected.size()));
  }
  return head.whole;
}

RecordFormat::Whole CsvFormat::split(std::string_view bytes, bool is_end, int64_t most) const {
  // Bytes that are searched for a quote at a time, so that short lines do not pay for the call.
  constexpr size_t kQuoteSearch = 4096;
  Whole whole;
  most = std::min(most, records_per_block(plan_.row_bytes));
  size_t unquoted = 0;  // end of the bytes that have no quotes
  while (whole.bytes < bytes.size() && whole.records < most) {
    const size_t begin = whole.bytes;
    if (const size_t length = empty_line(bytes, begin, is_end);
        length > 0 && plan_.field_count > 1) {
      whole.bytes += length;
      whole.lines += bytes[begin + length - 1] == '\n';
      continue;
    }
    const size_t line_end = std::min(bytes.find('\n', begin), bytes.size());
    if (unquoted < line_end) {
      const size_t searched = std::min(std::max(line_end, begin + kQuoteSearch), bytes.size());
      unquoted =
          begin + std::min(bytes.substr(begin, searched - begin).find('"'), searched - begin);
    }
    if (unquoted >= line_end) {
      if (line_end == bytes.size() && !is_end) break;
      whole.bytes = std::min(line_end + 1, bytes.size());
      whole.lines += line_end < bytes.size();
    } else {
      const CsvEnd end = find_record_end(bytes, begin, is_end, plan_.delimiter);
      if (!end.is_whole) break;
      if (end.is_open) {
        whole.fault = "has a quote that is not closed before the end of the file";
        break;
      }
      whole.bytes = end.place;
      whole.lines += std::count(bytes.begin() + begin, bytes.begin() + end.place, '\n');
    }
    ++whole.records;
  }
  return whole;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RecordFormat>> make_csv_format(
    const proto::DatasetStep::Files& def) {
  TRIREME_ASSIGN_OR_RETURN(CsvPlan plan, make_csv_plan(def));
  return std::make_shared<const CsvFormat>(std::move(plan));
}

absl::StatusOr<std::vector<std::string>> read_csv_header(Files& files, const std::string& path,
                                                         char delimiter) {
  TRIREME_ASSIGN_OR_RETURN(const auto file, files.open(path));
  auto head = read_csv_head(*file, delimiter, true);
  if (!head.ok()) {
    return with_origin(head.status(), {"", absl::StrCat("file '", path, "'")});
  }
  return std::move(head->names);
}

}  // namespace trireme::internal
