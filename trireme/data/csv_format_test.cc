#include "trireme/data/csv_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/csv_test_file.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using FormatPtr = std::shared_ptr<const RecordFormat>;

// A file in memory.
class CsvText : public InputFile {
 public:
  explicit CsvText(std::string text) : text_(std::move(text)) {}
  uint64_t size() const override { return text_.size(); }
  absl::Status read(uint64_t offset, void* data, size_t bytes) override {
    EXPECT_LE(offset + bytes, text_.size());
    std::copy_n(text_.data() + offset, bytes, static_cast<char*>(data));
    return absl::OkStatus();
  }

 private:
  const std::string text_;
};

DecodedCsv decode_text(const CsvFiles& def, const std::string& text) {
  return decode_csv_pieces(*csv_format_of(def), text, {});
}

std::string fault_of(const CsvFiles& def) {
  return std::string(make_csv_format(def).status().message());
}

std::vector<Column> some_columns() {
  return {{"id", at::kLong}, {"price", at::kFloat}, text_column("name", 8)};
}

TEST(CsvFormat, DecodesColumns) {
  CsvFiles def = csv_def({{"a", at::kLong},
                          {"b", at::kInt},
                          {"c", at::kFloat},
                          {"d", at::kDouble},
                          {"e", at::kBool},
                          text_column("f", 4)});
  def.mutable_csv()->mutable_columns()->Add(0);  // a field that is not used
  const DecodedCsv decoded = decode_text(def, "1,-2,0.5,1e3,1,abc,x\n-3,4,.25,-7.125,false,,\n");
  EXPECT_THAT(decoded.rows, ElementsAre(ElementsAre("1", "-2", "0.5", "1000", "1", "abc"),
                                        ElementsAre("-3", "4", "0.25", "-7.125", "0", "")));
  EXPECT_THAT(decoded.bad, IsEmpty());
}

TEST(CsvFormat, HasTheDtypesAndShapesOfTheColumns) {
  const FormatPtr format = csv_format_of(csv_def(
      {{"a", at::kDouble, {2, 2}}, {"b", at::kByte}, {"c", at::kBool}, text_column("d", 20)}));
  const std::string text = "1,2,3,4,255,1,t\n5,6,7,8,0,0,u\n";
  const BlockPtr block = value_or_throw(format->decode({text, 0, 1, 2}, nullptr));
  ASSERT_EQ(block->rows, 2);
  EXPECT_THAT(block->columns[0].values.sizes(), ElementsAre(2, 2, 2));
  EXPECT_EQ(block->columns[0].values.scalar_type(), at::kDouble);
  EXPECT_EQ(block->columns[0].values[1][1][0].item<double>(), 7);
  EXPECT_THAT(block->columns[1].values.sizes(), ElementsAre(2));
  EXPECT_EQ(block->columns[1].values.scalar_type(), at::kByte);
  EXPECT_EQ(block->columns[1].values[0].item<int>(), 255);
  EXPECT_EQ(block->columns[2].values.scalar_type(), at::kBool);
  EXPECT_THAT(block->columns[3].values.sizes(), ElementsAre(2, 20));
}

TEST(CsvFormat, TakesTheFieldsOfAColumnFromAllOverTheLine) {
  CsvFiles def = csv_def({{"x", at::kFloat, {3}}, {"label", at::kLong}});
  def.mutable_csv()->clear_columns();
  for (const uint32_t column : {1, 2, 0, 1, 1}) def.mutable_csv()->add_columns(column);
  EXPECT_THAT(decode_text(def, "1,2,unused,4,5\n").rows, ElementsAre(ElementsAre("1 4 5", "2")));
}

TEST(CsvFormat, ReadsTheSameWhereverThePiecesAreCut) {
  const std::string text =
      "1,2.5,plain\r\n"
      "2,\"3.5\",\"a,b\"\r\n"
      "\n"
      "3,4.5,\"a \"\"b\"\"\"\n"
      "x,5.5,bad\n"
      "\r\n"
      "5,6.5,\"two\nlines\"\n"
      "6,7.5\n"
      "7,8.5,\"\"\n"
      "8,9.5,\"\r\n\"";
  const FormatPtr format = csv_format_of(csv_def(some_columns()));
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const DecodedCsv decoded = decode_csv_pieces(*format, text, {cut}, cut % 3 + 1);
    EXPECT_THAT(decoded.rows,
                ElementsAre(ElementsAre("1", "2.5", "plain"), ElementsAre("2", "3.5", "a,b"),
                            ElementsAre("3", "4.5", "a \"b\""), ElementsAre("7", "8.5", ""),
                            ElementsAre("8", "9.5", "\r\n")))
        << cut;
    EXPECT_THAT(decoded.bad,
                ElementsAre("line 5, byte 45: field 1 ('id'): 'x' is not an int64",
                            "line 7, byte 57: field 3 ('name'): text of 9 bytes does not fit into "
                            "8; give the column more bytes",
                            "line 9, byte 75: has 2 fields, expected 3"))
        << cut;
    EXPECT_EQ(decoded.counted, 8) << cut;
    EXPECT_EQ(decoded.lines, 11) << cut;
  }
}

TEST(CsvFormat, ReadsALastLineWithoutAnEnd) {
  const CsvFiles def = csv_def({{"a", at::kLong}, {"b", at::kLong}});
  EXPECT_THAT(decode_text(def, "1,2\n3,4").rows,
              ElementsAre(ElementsAre("1", "2"), ElementsAre("3", "4")));
  EXPECT_THAT(decode_text(def, "1,2\r").rows, ElementsAre(ElementsAre("1", "2")));
  EXPECT_THAT(decode_text(def, "1,2\n\r").rows, ElementsAre(ElementsAre("1", "2")));
  EXPECT_THAT(decode_text(def, "").rows, IsEmpty());
}

TEST(CsvFormat, AnEmptyLineIsARecordIfThereIsOneField) {
  EXPECT_THAT(
      decode_text(csv_def({{.name = "a", .dtype = at::kLong, .missing = 9}}), "1\n\n\r\n2").rows,
      ElementsAre(ElementsAre("1"), ElementsAre("9"), ElementsAre("9"), ElementsAre("2")));
}

TEST(CsvFormat, SplitsAtMostAsManyRecordsAsAsked) {
  const FormatPtr format = csv_format_of(csv_def({{"a", at::kLong}, {"b", at::kLong}}));
  const auto whole = format->split("1,2\n\n3,4\n5,6\n", false, 2);
  EXPECT_EQ(whole.records, 2);
  EXPECT_EQ(whole.bytes, 9);
  EXPECT_EQ(whole.lines, 3);
}

TEST(CsvFormat, FillsInMissingNumbers) {
  const CsvFiles def = csv_def({{.name = "a", .dtype = at::kFloat, .missing = -1.5},
                                {.name = "b", .dtype = at::kInt, .missing = 7},
                                {.name = "c", .dtype = at::kBool, .missing = 1}});
  EXPECT_THAT(decode_text(def, ",,\n\"\",\"\",\"\"\n1,2,0\n").rows,
              ElementsAre(ElementsAre("-1.5", "7", "1"), ElementsAre("-1.5", "7", "1"),
                          ElementsAre("1", "2", "0")));
}

TEST(CsvFormat, ReportsRecordsThatAreNotValid) {
  const auto what = [](const Column& column, const std::string& text) {
    const DecodedCsv decoded = decode_text(csv_def({column, {"z", at::kLong}}), text);
    EXPECT_THAT(decoded.rows, IsEmpty());
    return decoded.bad.empty() ? "" : decoded.bad[0];
  };
  EXPECT_EQ(what({"p", at::kFloat}, "abc,1\n"),
            "line 1, byte 0: field 1 ('p'): 'abc' is not a float32");
  EXPECT_EQ(what({"p", at::kInt}, "2147483648,1\n"),
            "line 1, byte 0: field 1 ('p'): '2147483648' is not an int32");
  EXPECT_EQ(what({"p", at::kByte}, "\"256\",1"),
            "line 1, byte 0: field 1 ('p'): '256' is not a uint8");
  EXPECT_EQ(what({"p", at::kLong}, ",1\n"),
            "line 1, byte 0: field 1 ('p') is empty, expected an int64; Column::missing can stand "
            "in for it");
  EXPECT_EQ(what({"p", at::kFloat}, "1,2,3\n"), "line 1, byte 0: has 3 fields, expected 2");
  EXPECT_EQ(what({"p", at::kFloat}, "1\n"), "line 1, byte 0: has 1 field, expected 2");
  EXPECT_THAT(what(text_column("p", 8), "a\"b,1\n"), HasSubstr("has a quote in a field"));
  EXPECT_THAT(what(text_column("p", 8), "\"a\"b,1\n"), HasSubstr("has text between the quote"));
  EXPECT_THAT(what({"p", at::kLong}, "\n\n" + std::string(50, '\x01') + ",1\n"),
              AllOf(HasSubstr("line 3, byte 2: field 1 ('p'): '\\x01"), HasSubstr("…'")));
}

TEST(CsvFormat, ReportsAQuoteThatIsNotClosed) {
  const FormatPtr format = csv_format_of(csv_def(some_columns()));
  const DecodedCsv decoded = decode_csv_pieces(*format, "1,2,a\n2,3,\"b\n3,4,c\n", {});
  EXPECT_THAT(decoded.rows, ElementsAre(ElementsAre("1", "2", "a")));
  EXPECT_EQ(decoded.fault, "has a quote that is not closed before the end of the file");
  EXPECT_EQ(decoded.lines, 1);
}

TEST(CsvFormat, ReportsInTheOrderOfTheFileAndKeepsTheRest) {
  std::string text;
  CsvTexts expected_bad, expected_rows;
  for (int i = 0; i < 500; ++i) {
    const std::string place = absl::StrCat("line ", i + 1, ", byte ", text.size(), ": ");
    if (i % 7 == 3) {
      absl::StrAppend(&text, i, ",oops,a\n");
      expected_bad.push_back(place + "field 2 ('price'): 'oops' is not a float32");
    } else if (i % 11 == 5) {
      absl::StrAppend(&text, i, "\n");
      expected_bad.push_back(place + "has 1 field, expected 3");
    } else {
      absl::StrAppend(&text, i, ",1.5,a\n");
      expected_rows.push_back(absl::StrCat(i));
    }
  }
  const DecodedCsv decoded = decode_text(csv_def(some_columns()), text);
  EXPECT_EQ(decoded.bad, expected_bad);
  CsvTexts rows;
  for (const CsvTexts& row : decoded.rows) rows.push_back(row[0]);
  EXPECT_EQ(rows, expected_rows);
}

TEST(CsvFormat, ReturnsTheErrorOfTheCaller) {
  const FormatPtr format = csv_format_of(csv_def(some_columns()));
  const auto bad = [](size_t, uint64_t, const std::string& what) { return invalid_argument(what); };
  const std::string text = "1,2,a\nx,2,a\ny,2,a\n";
  EXPECT_EQ(format->decode({text, 0, 1, 3}, bad).status().message(),
            "field 1 ('id'): 'x' is not an int64");
}

TEST(CsvFormat, KeepsTextsOfAnyLength) {
  Column ragged = text_column("t", -1);
  const std::string longest(1000, 'x');
  const CsvFiles def = csv_def({ragged, {"a", at::kLong}});
  const DecodedCsv decoded =
      decode_text(def, absl::StrCat("ab,1\n,2\n", longest, ",3\nlost,y\n\"c\"\"d\",5\n"));
  EXPECT_THAT(decoded.rows, ElementsAre(ElementsAre("ab", "1"), ElementsAre("", "2"),
                                        ElementsAre(longest, "3"), ElementsAre("c\"d", "5")));
  EXPECT_EQ(decoded.bad.size(), 1);
}

TEST(CsvFormat, FillsTextsUpWithZeros) {
  for (const int64_t width : {1, 7, 8, 15, 16, 17, 40}) {
    std::string text;
    std::vector<CsvTexts> expected;
    for (int64_t length = 0; length <= width; ++length) {
      expected.push_back({std::string(length, 'a'), "1"});
      absl::StrAppend(&text, expected.back()[0], ",1\n");
    }
    const DecodedCsv decoded =
        decode_text(csv_def({text_column("t", width), {"a", at::kLong}}), text);
    EXPECT_EQ(decoded.rows, expected) << width;
    EXPECT_THAT(decoded.bad, IsEmpty());
    const std::string too_long = std::string(width + 1, 'a') + ",1\n";
    EXPECT_EQ(
        decode_text(csv_def({text_column("t", width), {"a", at::kLong}}), too_long).bad.size(), 1);
  }
}

// ---------------------------------------------------------------------------- the first line

absl::StatusOr<RecordFormat::Whole> head_of(const CsvFiles& def, const std::string& text) {
  CsvText file(text);
  return csv_format_of(def)->read_head(file);
}

CsvFiles def_with_header(const CsvTexts& names) {
  CsvFiles def = csv_def(some_columns());
  def.mutable_csv()->set_has_header(true);
  for (const std::string& name : names) def.mutable_csv()->add_header(name);
  return def;
}

TEST(CsvHeader, IsChecked) {
  const CsvFiles def = def_with_header({"id", "price", "the\nname"});
  const auto head = head_of(def, "id,\"price\",\"the\nname\"\r\n1,2,3\n");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->bytes, 23);
  EXPECT_EQ(head->lines, 2);
  EXPECT_EQ(head->records, 0);
  const auto fault = [&](const std::string& text) {
    return std::string(head_of(def, text).status().message());
  };
  EXPECT_EQ(fault("id,cost,name\n"), "field 2 of the first line is named 'cost', expected 'price'");
  EXPECT_EQ(fault("id,price\n"), "the first line has 2 names, expected 3");
  EXPECT_EQ(fault(""), "the file is empty, expected a line with the names of the fields");
  EXPECT_THAT(fault("id,\"price\n"), HasSubstr("has a quote that is not closed"));
  EXPECT_THAT(fault(std::string(17 << 20, 'a')), HasSubstr("is this a CSV file?"));
}

TEST(CsvHeader, MayHaveAnyNamesIfNoneAreGiven) {
  EXPECT_EQ(head_of(def_with_header({}), "a,b\n1,2\n")->bytes, 4);
  EXPECT_EQ(head_of(def_with_header({}), std::string(100'000, 'a') + "\n")->bytes, 100'001);
}

TEST(CsvHeader, BeginsAfterAByteOrderMark) {
  EXPECT_EQ(head_of(def_with_header({"id", "price", "name"}), "\xEF\xBB\xBFid,price,name\n")->bytes,
            17);
  const auto head = head_of(csv_def(some_columns()),
                            "\xEF\xBB\xBF"
                            "1,2,a\n");
  EXPECT_EQ(head->bytes, 3);
  EXPECT_EQ(head->lines, 0);
  EXPECT_EQ(head_of(csv_def(some_columns()), "1,2,a\n")->bytes, 0);
}

TEST(CsvHeader, NamesTheFileThatCannotBeRead) {
  const auto names = read_csv_header(Files::local(), "/nonexistent/a.csv", ',');
  EXPECT_THAT(std::string(names.status().message()), HasSubstr("/nonexistent/a.csv"));
}

TEST(CsvHeader, IsReadFromAFile) {
  const std::string path = testing::TempDir() + "csv_format_test.csv";
  (void)Files::local().remove(path);
  ASSERT_TRUE(Files::local().write_text(path, "a;\"b;c\";d\n1;2;3\n").ok());
  EXPECT_THAT(value_or_throw(read_csv_header(Files::local(), path, ';')),
              ElementsAre("a", "b;c", "d"));
  ASSERT_TRUE(Files::local().remove(path).ok());
}

// ---------------------------------------------------------------------------- definitions

TEST(CsvDefinition, IsChecked) {
  const CsvFiles good = csv_def(some_columns());
  EXPECT_EQ(fault_of(good), "");
  const auto changed = [&](auto change) {
    CsvFiles def = good;
    change(def);
    return fault_of(def);
  };
  for (const std::string delimiter : {"", ",,", "\"", "\n", "\r"}) {
    EXPECT_THAT(fault_of(csv_def(some_columns(), delimiter)), HasSubstr("delimiter"));
  }
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_csv()->set_columns(0, 4); }),
              HasSubstr("field 1 belongs to column 4, but there are only 3"));
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_csv()->set_columns(0, 0); }),
              HasSubstr("column 'id' needs 1 fields of a line, but has 0"));
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_csv()->add_columns(3); }),
              HasSubstr("column 'name' needs 1 fields of a line, but has 2"));
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_csv()->clear_columns(); }),
              HasSubstr("without fields"));
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_csv()->add_header("id"); }),
              HasSubstr("names"));
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_columns(0)->set_dtype(1000); }),
              HasSubstr("dtype"));
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_columns(0)->set_missing(0.5); }),
              HasSubstr("0.5 for missing fields, which is not an int64"));
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_columns(0)->set_missing(0x1p63); }),
              HasSubstr("which is not an int64"));
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_columns(2)->set_missing(1); }),
              HasSubstr("is text"));
  EXPECT_THAT(changed([](CsvFiles& def) { def.mutable_columns(0)->add_sizes(-1); }),
              HasSubstr("size -1"));
  EXPECT_THAT(changed([](CsvFiles& def) {
                for (int i = 0; i < 3; ++i) def.mutable_columns(0)->add_sizes(int64_t{1} << 30);
              }),
              HasSubstr("too many numbers"));
  EXPECT_THAT(
      changed([](CsvFiles& def) { def.mutable_columns(2)->set_sizes(0, int64_t{1} << 40); }),
      HasSubstr("more than"));
}

TEST(CsvDefinition, CannotMakeBlocksLarge) {
  const FormatPtr format = csv_format_of(csv_def({text_column("t", 1 << 20)}));
  const std::string text(4096, '\n');
  EXPECT_EQ(format->split(text, true, 1'000'000).records, 64);
  EXPECT_EQ(error_code(format->decode({text, 0, 1, 4096}, nullptr).status()), ErrorCode::kInternal);
}

}  // namespace
}  // namespace trireme::internal
