#include "trireme/data/text_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

proto::DatasetStep::Files lines_def(int64_t bytes) {
  proto::DatasetStep::Files def;
  def.mutable_text_lines();
  proto::ColumnDef& column = *def.add_columns();
  column.set_dtype(static_cast<int32_t>(at::kByte));
  column.set_is_text(true);
  column.add_sizes(bytes);
  return def;
}

struct Lines {
  std::vector<std::string> texts, bad;
};

// Reads text in two pieces, of which the first ends at `cut`.
Lines lines_of(int64_t bytes, const std::string& text, size_t cut, int64_t most = 1000) {
  const auto format = value_or_throw(make_text_format(lines_def(bytes)));
  Lines lines;
  size_t begin = 0;
  uint64_t line = 1;
  for (const size_t end : {cut, text.size(), text.size()}) {
    for (;;) {
      const std::vector<char> piece(text.begin() + begin, text.begin() + end);
      const auto whole = format->split({piece.data(), piece.size()}, end == text.size(), most);
      EXPECT_LE(whole.records, most);
      if (whole.bytes == 0) break;
      const auto bad = [&](size_t offset, uint64_t at, const std::string& what) {
        lines.bad.push_back(absl::StrCat("line ", at, ", byte ", begin + offset, ": ", what));
        return absl::OkStatus();
      };
      const RawRecords raw{{piece.data(), whole.bytes}, begin, line, whole.records};
      const BlockPtr block = value_or_throw(format->decode(raw, bad));
      const BlockColumn& column = block->columns[0];
      const char* data = reinterpret_cast<const char*>(column.values.const_data_ptr<uint8_t>());
      for (int64_t row = 0; row < block->rows; ++row) {
        std::string& shown = lines.texts.emplace_back();
        if (bytes < 0) {
          shown.assign(data + column.offsets[row], data + column.offsets[row + 1]);
        } else {
          shown.assign(data + row * bytes, data + (row + 1) * bytes);
          shown.resize(std::min(shown.find('\0'), shown.size()));
        }
      }
      line += whole.lines;
      begin += whole.bytes;
    }
  }
  EXPECT_EQ(begin, text.size());
  return lines;
}

TEST(TextFormat, ReadsLinesWhereverThePiecesAreCut) {
  const std::string text = "first\nsecond\r\n\n\r\nthe fifth line, which is long\nlast";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    for (const int64_t bytes : {29, 64, -1}) {
      const Lines lines = lines_of(bytes, text, cut, cut % 3 + 1);
      EXPECT_THAT(lines.texts,
                  ElementsAre("first", "second", "", "", "the fifth line, which is long", "last"));
      EXPECT_THAT(lines.bad, IsEmpty());
    }
    const Lines lines = lines_of(10, text, cut);
    EXPECT_THAT(lines.texts, ElementsAre("first", "second", "", "", "last"));
    EXPECT_THAT(lines.bad, ElementsAre("line 5, byte 17: text of 29 bytes does not fit into 10; "
                                       "set TextOptions::bytes"));
  }
}

TEST(TextFormat, ReadsTheEndAsTensorFlowDoes) {
  EXPECT_THAT(lines_of(8, "", 0).texts, IsEmpty());
  EXPECT_THAT(lines_of(8, "a\n", 0).texts, ElementsAre("a"));
  EXPECT_THAT(lines_of(8, "a\n\n", 0).texts, ElementsAre("a", ""));
  EXPECT_THAT(lines_of(8, "a\nb\r", 0).texts, ElementsAre("a", "b"));
  EXPECT_THAT(lines_of(8, "a\n\r", 0).texts, ElementsAre("a"));
}

TEST(TextFormat, ChecksTheDefinition) {
  const auto fault = [](const proto::DatasetStep::Files& def) {
    return std::string(make_text_format(def).status().message());
  };
  EXPECT_EQ(fault(lines_def(8)), "");
  EXPECT_THAT(fault(lines_def(0)), HasSubstr("lines of 0 bytes"));
  EXPECT_THAT(fault(lines_def(-2)), HasSubstr("lines of -2 bytes"));
  EXPECT_THAT(fault(lines_def(int64_t{1} << 40)), HasSubstr("use 1 to"));
  EXPECT_THAT(fault({}), HasSubstr("one column of text"));
  auto def = lines_def(8);
  def.mutable_columns(0)->set_dtype(static_cast<int32_t>(at::kFloat));
  EXPECT_THAT(fault(def), HasSubstr("one column of text"));
}

TEST(TextFormat, BoundsTheMemoryOfABlock) {
  const auto format = value_or_throw(make_text_format(lines_def(1 << 20)));
  const std::string text(4096, '\n');
  EXPECT_EQ(format->split(text, true, 1'000'000).records, 64);
  EXPECT_EQ(error_code(format->decode({text, 0, 1, 4096}, nullptr).status()), ErrorCode::kInternal);
}

}  // namespace
}  // namespace trireme::internal
