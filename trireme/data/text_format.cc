#include "trireme/data/text_format.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/text_rows.h"

namespace trireme::internal {
namespace {

constexpr int64_t kMostLineBytes = int64_t{1} << 24;

class TextFormat : public RecordFormat {
 public:
  explicit TextFormat(int64_t width) : width_(width) {}

  absl::StatusOr<Whole> read_head(InputFile&) const override { return Whole{}; }
  Whole split(std::string_view bytes, bool is_end, int64_t most) const override;
  absl::StatusOr<BlockPtr> decode(const RawRecords& raw, const BadRecord& bad) const override;

 private:
  const int64_t width_;  // bytes of a row, or -1 for lines of any length
};

RecordFormat::Whole TextFormat::split(std::string_view bytes, bool is_end, int64_t most) const {
  Whole whole;
  most = std::min(most, records_per_block(std::max<int64_t>(width_, 0)));
  while (whole.records < most) {
    const size_t line_end = bytes.find('\n', whole.bytes);
    if (line_end == std::string_view::npos) break;
    whole.bytes = line_end + 1;
    ++whole.records;
  }
  whole.lines = whole.records;
  if (is_end && whole.records < most && whole.bytes < bytes.size()) {
    // A line without an end. In tf.data, a single \r is not a line.
    whole.records += bytes.substr(whole.bytes) == "\r" ? 0 : 1;
    whole.bytes = bytes.size();
  }
  return whole;
}

absl::StatusOr<BlockPtr> TextFormat::decode(const RawRecords& raw, const BadRecord& bad) const {
  if (raw.records > records_per_block(std::max<int64_t>(width_, 0))) {
    return make_status(ErrorCode::kInternal, "there are more lines than split() gives at a time");
  }
  TextRows texts(width_, raw.records, raw.bytes.size());
  int64_t rows = 0;
  size_t begin = 0;
  for (int64_t i = 0; i < raw.records; ++i) {
    const size_t line_end = std::min(raw.bytes.find('\n', begin), raw.bytes.size());
    std::string_view line = raw.bytes.substr(begin, line_end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (texts.fits(line.size())) {
      texts.set(rows++, line, raw.bytes.size() - begin >= kReadAhead);
    } else {
      const std::string what = absl::StrCat("text of ", line.size(), " bytes does not fit into ",
                                            width_, "; set TextOptions::bytes");
      TRIREME_RETURN_IF_ERROR(bad(begin, raw.first_line + i, what));
    }
    begin = std::min(line_end + 1, raw.bytes.size());
  }
  auto block = std::make_shared<Block>();
  block->rows = rows;
  block->columns.push_back(texts.finish(rows));
  return block;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RecordFormat>> make_text_format(
    const proto::DatasetStep::Files& def) {
  if (def.columns_size() != 1 || !def.columns(0).is_text() || def.columns(0).sizes_size() != 1 ||
      def.columns(0).dtype() != static_cast<int32_t>(at::kByte)) {
    return invalid_argument("lines of text need one column of text; use text_column()");
  }
  const int64_t width = def.columns(0).sizes(0);
  if (width != -1 && (width < 1 || width > kMostLineBytes)) {
    return invalid_argument(absl::StrCat("lines of ", width, " bytes cannot be read; use 1 to ",
                                         kMostLineBytes, " bytes"));
  }
  return std::make_shared<const TextFormat>(width);
}

}  // namespace trireme::internal
