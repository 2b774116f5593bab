// Reads random CSV, and compares the records with those that a simple reader finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "trireme/data/csv_test_file.h"

namespace trireme::internal {
namespace {

// Reads CSV byte by byte, as simply as possible.
struct Reference {
  std::vector<CsvTexts> rows;
  std::vector<int64_t> bad_lines;
  bool is_open = false;

  Reference(const std::string& text, char delimiter, size_t fields) {
    size_t at = 0;
    int64_t line = 1;
    while (at < text.size()) {
      const int64_t first_line = line;
      CsvTexts record = {""};
      bool is_bad = false, is_quoted = false, was_quoted = false, is_new = true, is_done = false;
      while (!is_done) {
        if (at == text.size()) {
          if (is_quoted) {
            is_open = true;
            return;
          }
          break;
        }
        const char byte = text[at++];
        const char next = at < text.size() ? text[at] : '\n';
        line += byte == '\n';
        if (is_quoted) {
          if (byte == '"' && next == '"' && at < text.size()) {
            record.back() += '"';
            ++at;
          } else if (byte == '"') {
            is_quoted = false;
            was_quoted = true;
          } else {
            record.back() += byte;
          }
        } else if (byte == delimiter) {
          record.emplace_back();
          is_new = true;
          was_quoted = false;
          continue;
        } else if (byte == '\n') {
          is_done = true;
        } else if (byte == '\r' && next == '\n') {
          // part of the line end
        } else if (byte == '"') {
          if (is_new) {
            is_quoted = true;
          } else {
            is_bad = true;
          }
        } else {
          is_bad = is_bad || was_quoted;
          record.back() += byte;
        }
        is_new = false;
      }
      if (record == CsvTexts{""} && !was_quoted && !is_bad && fields > 1) continue;
      if (is_bad || record.size() != fields) {
        bad_lines.push_back(first_line);
      } else {
        rows.push_back(record);
      }
    }
  }
};

// Compares what is read from a text, in random pieces, with what the reference reads.
void expect_as_reference(const std::string& text, size_t fields, std::mt19937& random) {
  const std::vector<Column> columns = [&] {
    std::vector<Column> made;
    for (size_t i = 0; i < fields; ++i) made.push_back(text_column("t", -1));
    return made;
  }();
  const Reference reference(text, ';', fields);
  std::vector<size_t> cuts;
  for (size_t i = random() % 4; i > 0; --i) cuts.push_back(random() % (text.size() + 1));
  std::sort(cuts.begin(), cuts.end());
  const DecodedCsv decoded =
      decode_csv_pieces(*csv_format_of(csv_def(columns, ";")), text, cuts, 1 + random() % 100);
  ASSERT_EQ(decoded.rows, reference.rows) << testing::PrintToString(text);
  ASSERT_EQ(!decoded.fault.empty(), reference.is_open) << testing::PrintToString(text);
  ASSERT_EQ(decoded.bad.size(), reference.bad_lines.size()) << testing::PrintToString(text);
  for (size_t i = 0; i < decoded.bad.size(); ++i) {
    ASSERT_THAT(decoded.bad[i],
                testing::StartsWith(absl::StrCat("line ", reference.bad_lines[i], ",")));
  }
}

TEST(CsvProperty, ReadsValidFilesAsTheReference) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const size_t fields = 1 + random() % 5;
    const char* const line_end = random() % 2 == 0 ? "\n" : "\r\n";
    std::string text;
    for (size_t row = random() % 200; row > 0; --row) {
      for (size_t field = 0; field < fields; ++field) {
        if (field > 0) text += ';';
        const bool is_quoted = random() % 4 == 0;
        if (is_quoted) text += '"';
        for (size_t j = random() % 20; j > 0; --j) {
          const char byte = (is_quoted ? "ab;\"\n\r1" : "abc1 .2")[random() % 7];
          text += byte;
          if (byte == '"') text += byte;
        }
        if (is_quoted) text += '"';
      }
      if (row > 1 || random() % 2 == 0) text += line_end;
    }
    ASSERT_NO_FATAL_FAILURE(expect_as_reference(text, fields, random));
  }
}

TEST(CsvProperty, ReadsAnyBytesAsTheReference) {
  std::mt19937 random(8);
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (size_t j = random() % 300; j > 0; --j) text += "a;;;\n\n\r\"b"[random() % 9];
    ASSERT_NO_FATAL_FAILURE(expect_as_reference(text, 1 + random() % 4, random));
  }
}

}  // namespace
}  // namespace trireme::internal
