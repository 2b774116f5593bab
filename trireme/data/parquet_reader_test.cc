#include "trireme/data/parquet_reader.h"

#include <ATen/ATen.h>
#include <arrow/array.h>
#include <arrow/io/memory.h>
#include <arrow/json/from_string.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/file_facts.h"
#include "trireme/testing/unsynced_files.h"

namespace trireme::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPath[] = "/rows.parquet";

struct Field {
  std::string name;
  std::shared_ptr<arrow::DataType> type;
  std::string json;
};

struct Format {
  int64_t group_rows = 1 << 20;
  parquet::Compression::type compression = parquet::Compression::UNCOMPRESSED;
  bool checksums = false;
};

std::shared_ptr<arrow::Table> table_of(const std::vector<Field>& fields) {
  std::vector<std::shared_ptr<arrow::Field>> schema;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const Field& field : fields) {
    schema.push_back(arrow::field(field.name, field.type));
    arrays.push_back(arrow::json::ArrayFromJSONString(field.type, field.json).ValueOrDie());
  }
  return arrow::Table::Make(arrow::schema(schema), arrays);
}

std::string parquet_bytes(const arrow::Table& table, const Format& format = {}) {
  parquet::WriterProperties::Builder builder;
  builder.compression(format.compression)->disable_dictionary();
  if (format.checksums) builder.enable_page_checksum();
  const auto schema = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  const auto sink = arrow::io::BufferOutputStream::Create().ValueOrDie();
  const arrow::Status written = parquet::arrow::WriteTable(
      table, arrow::default_memory_pool(), sink, format.group_rows, builder.build(), schema);
  if (!written.ok()) throw std::runtime_error(written.ToString());
  return sink->Finish().ValueOrDie()->ToString();
}

// Returns the place of a column's chunk in the file.
std::pair<size_t, size_t> place_of(const std::string& bytes, int group, int column) {
  const auto reader = parquet::ParquetFileReader::Open(arrow::io::BufferReader::FromString(bytes));
  const auto chunk = reader->metadata()->RowGroup(group)->ColumnChunk(column);
  return {chunk->data_page_offset(), chunk->total_compressed_size()};
}

proto::DatasetStep::Files definition(const std::vector<Column>& columns, int threads = 0) {
  proto::DatasetStep::Files def;
  for (const Column& column : columns) *def.add_columns() = to_def(column);
  def.set_threads(threads);
  return def;
}

// All rows of a file, joined.
struct Rows {
  std::vector<at::Tensor> columns;
  std::vector<std::vector<int64_t>> offsets;
  int64_t count = 0;
  int64_t blocks = 0;
};

absl::StatusOr<Rows> rest_of(BlockReader& reader, size_t columns) {
  std::vector<std::vector<at::Tensor>> parts(columns);
  Rows rows;
  rows.offsets.resize(columns);
  while (true) {
    TRIREME_ASSIGN_OR_RETURN(const BlockPtr block, reader.next());
    if (block == nullptr) break;
    EXPECT_GT(block->rows, 0);
    EXPECT_EQ(block->columns.size(), columns);
    for (size_t i = 0; i < columns; ++i) {
      const BlockColumn& column = block->columns[i];
      EXPECT_TRUE(column.values.is_contiguous());
      const auto ends = static_cast<int64_t>(column.offsets.size()) - 1;
      EXPECT_EQ(ends < 0 ? column.values.size(0) : ends, block->rows);
      parts[i].push_back(column.values);
      rows.offsets[i].insert(rows.offsets[i].end(), column.offsets.begin(), column.offsets.end());
    }
    rows.count += block->rows;
    ++rows.blocks;
  }
  for (const std::vector<at::Tensor>& part : parts) {
    rows.columns.push_back(part.empty() ? at::Tensor() : at::cat(part));
  }
  return rows;
}

class Parquet : public ::testing::Test {
 protected:
  void write(const std::vector<Field>& fields, const Format& format = {}) {
    write(parquet_bytes(*table_of(fields), format));
  }
  void write(std::string bytes) {
    if (!files_.exists(kPath).value()) {
      ASSERT_TRUE(files_.write_text(kPath, "").ok());
    }
    files_.set_contents(kPath, std::move(bytes));
  }
  absl::StatusOr<Rows> read(const std::vector<Column>& columns, int threads = 0) {
    TRIREME_ASSIGN_OR_RETURN(const auto reader,
                             open_parquet(definition(columns, threads), files_, kPath));
    return rest_of(*reader, columns.size());
  }
  // Expects that reading fails with an error that names the file and has these texts.
  void expect_error(const std::vector<Column>& columns, ErrorCode code,
                    const std::vector<std::string>& texts) {
    const absl::Status status = read(columns).status();
    EXPECT_EQ(error_code(status), code) << status;
    EXPECT_EQ(error_origin(status).object, absl::StrCat("file '", kPath, "'"));
    for (const std::string& text : texts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    }
  }

  UnsyncedFiles files_;
};

template <typename T>
std::vector<T> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  return std::vector<T>(flat.data_ptr<T>(), flat.data_ptr<T>() + flat.numel());
}

std::vector<std::string> texts(const at::Tensor& tensor) {
  std::vector<std::string> result;
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    const at::Tensor row = tensor[i].contiguous();
    result.emplace_back(reinterpret_cast<const char*>(row.data_ptr<uint8_t>()), row.numel());
  }
  return result;
}

// Writes a file with the rows 0 to count - 1: a column 'id', and a column 'text' of few bytes.
std::vector<Field> numbered(int64_t count) {
  std::string ids, texts;
  for (int64_t i = 0; i < count; ++i) {
    absl::StrAppend(&ids, i == 0 ? "[" : ",", i);
    absl::StrAppend(&texts, i == 0 ? "[\"" : ",\"", i % 7, "\"");
  }
  return {{"id", arrow::int64(), ids + "]"}, {"text", arrow::utf8(), texts + "]"}};
}

TEST_F(Parquet, GivesColumnsOfNumbersAndTheirTypes) {
  write({{"i8", arrow::int8(), "[-1]"},
         {"u8", arrow::uint8(), "[200]"},
         {"i16", arrow::int16(), "[-300]"},
         {"u16", arrow::uint16(), "[60000]"},
         {"i32", arrow::int32(), "[-100000]"},
         {"u32", arrow::uint32(), "[4000000000]"},
         {"i64", arrow::int64(), "[-5000000000]"},
         {"u64", arrow::uint64(), "[7]"},
         {"f16", arrow::float16(), "[0.5]"},
         {"f32", arrow::float32(), "[1.5]"},
         {"f64", arrow::float64(), "[2.25]"},
         {"flag", arrow::boolean(), "[true]"},
         {"pair", arrow::fixed_size_list(arrow::float32(), 2), "[[3, 4]]"},
         {"text", arrow::utf8(), "[\"a\"]"},
         {"list", arrow::list(arrow::int32()), "[[1]]"},
         {"time", arrow::timestamp(arrow::TimeUnit::MILLI), "[5]"}});
  const auto columns = parquet_columns(files_, kPath);
  ASSERT_TRUE(columns.ok()) << columns.status();
  const std::vector<Column> expected = {
      {"i8", at::kInt},         {"u8", at::kByte},   {"i16", at::kInt},    {"u16", at::kInt},
      {"i32", at::kInt},        {"u32", at::kLong},  {"i64", at::kLong},   {"u64", at::kLong},
      {"f16", at::kFloat},      {"f32", at::kFloat}, {"f64", at::kDouble}, {"flag", at::kBool},
      {"pair", at::kFloat, {2}}};
  EXPECT_EQ(*columns, expected);

  const auto rows = read(*columns);
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::vector<double> numbers;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(rows->columns[i].scalar_type(), expected[i].dtype);
    numbers.push_back(rows->columns[i].to(at::kDouble).sum().item<double>());
  }
  EXPECT_THAT(numbers,
              ElementsAre(-1, 200, -300, 60000, -100000, 4e9, -5e9, 7, 0.5, 1.5, 2.25, 1, 7));
  const auto time = read({{"time", at::kLong}});
  ASSERT_TRUE(time.ok()) << time.status();
  EXPECT_EQ(time->columns[0].item<int64_t>(), 5);
}

TEST_F(Parquet, ConvertsNumbersToTypesThatHoldThem) {
  write({{"n", arrow::int64(), "[0, 1, 1]"}, {"x", arrow::float64(), "[0.5, 1, 2]"}});
  for (const c10::ScalarType dtype :
       {at::kBool, at::kByte, at::kInt, at::kLong, at::kFloat, at::kDouble}) {
    const auto rows = read({{"n", dtype}});
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_TRUE(at::equal(rows->columns[0], at::tensor({0, 1, 1}).to(dtype))) << dtype;
  }
  const auto rows = read({{"x", at::kFloat}, {"n", at::kInt}});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(values<float>(rows->columns[0]), ElementsAre(0.5f, 1.f, 2.f));
  EXPECT_THAT(values<int32_t>(rows->columns[1]), ElementsAre(0, 1, 1));

  write({{"n", arrow::int64(), "[1, 2, 300, 4]"}});
  expect_error({{"n", at::kByte}}, ErrorCode::kDataLoss, {"row 2", "column 'n'", "300", "uint8"});
  expect_error({{"n", at::kBool}}, ErrorCode::kDataLoss, {"row 1", "bool"});
  write({{"n", arrow::uint64(), "[18446744073709551615]"}});
  expect_error({{"n", at::kLong}}, ErrorCode::kDataLoss, {"row 0", "int64"});
}

TEST_F(Parquet, FillsInNullsOrNamesTheFirst) {
  write({{"x", arrow::float32(), "[1, null, 3]"},
         {"n", arrow::int64(), "[null, 2, null]"},
         {"flag", arrow::boolean(), "[true, null, false]"},
         {"whole", arrow::float32(), "[4, 5, 6]"}});
  const auto rows = read({{"x", at::kFloat, {}, -1.5},
                          {"n", at::kInt, {}, 9},
                          {"flag", at::kBool, {}, 1},
                          {"whole", at::kFloat}});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(values<float>(rows->columns[0]), ElementsAre(1, -1.5, 3));
  EXPECT_THAT(values<int32_t>(rows->columns[1]), ElementsAre(9, 2, 9));
  EXPECT_THAT(values<bool>(rows->columns[2]), ElementsAre(true, true, false));
  EXPECT_THAT(values<float>(rows->columns[3]), ElementsAre(4, 5, 6));

  expect_error({{"whole", at::kFloat}, {"x", at::kFloat}}, ErrorCode::kDataLoss,
               {"row 1", "column 'x'", "null", "`missing`"});
  for (const double missing : {0.5, 256.0, -1.0}) {
    expect_error({{"n", at::kByte, {}, missing}}, ErrorCode::kInvalidArgument, {"`missing`"});
  }
}

TEST_F(Parquet, ReadsTextOfAllKinds) {
  write({{"text", arrow::utf8(), R"(["a", null, "", "four"])"},
         {"large", arrow::large_utf8(), R"(["b", "bb", null, "bbb"])"},
         {"bytes", arrow::binary(), R"(["c", "c", "c", "c"])"},
         {"fixed", arrow::fixed_size_binary(2), R"(["dd", "ee", "ff", "gg"])"},
         {"coded", arrow::dictionary(arrow::int32(), arrow::utf8()), R"(["x", "yy", null, "x"])"}});
  const auto rows = read({text_column("text", 4), text_column("large", 3), text_column("bytes", 1),
                          text_column("fixed", 3), text_column("coded", 2)});
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto text = [](std::string value, size_t bytes) { return value.resize(bytes), value; };
  EXPECT_THAT(texts(rows->columns[0]), ElementsAre(text("a", 4), text("", 4), text("", 4), "four"));
  EXPECT_THAT(texts(rows->columns[1]),
              ElementsAre(text("b", 3), text("bb", 3), text("", 3), "bbb"));
  EXPECT_THAT(texts(rows->columns[2]), ElementsAre("c", "c", "c", "c"));
  EXPECT_THAT(texts(rows->columns[3]),
              ElementsAre(text("dd", 3), text("ee", 3), text("ff", 3), text("gg", 3)));
  EXPECT_THAT(texts(rows->columns[4]), ElementsAre(text("x", 2), "yy", text("", 2), text("x", 2)));
  const auto ragged = read({{.name = "text", .dtype = at::kByte, .sizes = {-1}, .is_text = true}});
  ASSERT_TRUE(ragged.ok()) << ragged.status();
  EXPECT_THAT(ragged->offsets[0], ElementsAre(0, 1, 1, 1, 5));
  EXPECT_EQ(values<uint8_t>(ragged->columns[0]), (std::vector<uint8_t>{'a', 'f', 'o', 'u', 'r'}));

  expect_error({text_column("text", 3)}, ErrorCode::kDataLoss,
               {"row 3", "column 'text'", "4 bytes", "3"});
}

TEST_F(Parquet, ReadsListsOfOneLengthAndOfDifferentLengths) {
  write({{"four", arrow::list(arrow::int64()), "[[1, 2, 3, 4], [5, 6, 7, 8]]"},
         {"two", arrow::fixed_size_list(arrow::float32(), 2), "[[1, 2], [3, 4]]"},
         {"holes", arrow::list(arrow::float32()), "[null, [1, null]]"},
         {"some", arrow::large_list(arrow::int32()), "[[1, 2], [3, 4, 5, 6]]"},
         {"none", arrow::list(arrow::int32()), "[[], null]"}});
  const auto lists = read({{"four", at::kLong, {2, 2}},
                           {"two", at::kDouble, {2}},
                           {"holes", at::kFloat, {2}, 9},
                           {"some", at::kInt, {-1}},
                           {"none", at::kInt, {-1}, 0}});
  ASSERT_TRUE(lists.ok()) << lists.status();
  EXPECT_EQ(lists->columns[0].sizes(), (c10::IntArrayRef{2, 2, 2}));
  EXPECT_THAT(values<int64_t>(lists->columns[0]), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(values<double>(lists->columns[1]), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values<float>(lists->columns[2]), ElementsAre(9, 9, 1, 9));
  EXPECT_THAT(values<int32_t>(lists->columns[3]), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(lists->offsets[3], ElementsAre(0, 2, 6));
  EXPECT_THAT(lists->offsets[4], ElementsAre(0, 0, 0));
  EXPECT_EQ(lists->columns[4].numel(), 0);

  const auto pairs = read({{"some", at::kLong, {-1, 2}}});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_EQ(pairs->columns[0].sizes(), (c10::IntArrayRef{3, 2}));
  EXPECT_THAT(pairs->offsets[0], ElementsAre(0, 1, 3));

  expect_error({{"some", at::kInt, {2}}}, ErrorCode::kDataLoss,
               {"row 1", "column 'some'", "4 values", "expected 2"});
  expect_error({{"some", at::kInt, {-1, 4}}}, ErrorCode::kDataLoss, {"row 0", "a multiple of 4"});
  expect_error({{"holes", at::kFloat, {2}}}, ErrorCode::kDataLoss, {"row 0", "null"});
  expect_error({{"none", at::kInt, {-1}}}, ErrorCode::kDataLoss, {"row 1", "null"});
}

TEST_F(Parquet, RejectsColumnsThatTheFileDoesNotHave) {
  write({{"x", arrow::float64(), "[1]"},
         {"text", arrow::utf8(), "[\"1\"]"},
         {"list", arrow::list(arrow::int32()), "[[1]]"},
         {"both", arrow::struct_({arrow::field("a", arrow::int32())}), "[{\"a\": 1}]"}});
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  expect_error({{"y", at::kFloat}}, invalid, {"'y'", "x, text, list, both"});
  expect_error({{"x", at::kLong}}, invalid, {"'x'", "double", "int64"});
  expect_error({{"x", at::kFloat, {2}}}, invalid, {"'x'", "double", "list"});
  expect_error({text_column("x", 4)}, invalid, {"'x'", "text"});
  expect_error({{"text", at::kFloat}}, invalid, {"'text'", "string", "text_column()"});
  expect_error({{"list", at::kInt}}, invalid, {"'list'", "`sizes`"});
  expect_error({{"both", at::kInt}}, invalid, {"'both'", "struct"});
  write({{"text", arrow::utf8(), "[\"1\"]"}});
  EXPECT_EQ(error_code(parquet_columns(files_, kPath).status()), invalid);
  EXPECT_EQ(error_code(parquet_columns(files_, "/other").status()), ErrorCode::kNotFound);
}

TEST_F(Parquet, ReadsAllRowGroupsWithAnyNumberOfThreads) {
  constexpr int64_t kRows = 200'000;
  for (const int64_t group_rows : {int64_t{1000}, int64_t{70'000}, kRows}) {
    write(numbered(kRows), {.group_rows = group_rows, .compression = parquet::Compression::ZSTD});
    for (const int threads : {0, 1, 2}) {
      const auto rows = read({{"id", at::kLong}, text_column("text", 1)}, threads);
      ASSERT_TRUE(rows.ok()) << rows.status();
      ASSERT_EQ(rows->count, kRows);
      EXPECT_TRUE(at::equal(rows->columns[0], at::arange(kRows)));
      EXPECT_TRUE(
          at::equal(rows->columns[1].view({-1}), (at::arange(kRows) % 7 + '0').to(at::kByte)));
      EXPECT_LE(rows->blocks, 6);  // small row groups are read together
    }
  }
}

TEST_F(Parquet, AFileWithoutRowsEndsAtOnce) {
  write({{"x", arrow::float64(), "[]"}});
  const auto rows = read({{"x", at::kFloat}});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->count, 0);
}

// Wide columns of text make batches of 32 rows, so that row groups have several.
TEST_F(Parquet, SkipsToEveryRow) {
  constexpr int64_t kRows = 130;
  const std::vector<Column> columns = {{"id", at::kLong}, text_column("text", 256 << 10)};
  for (const int64_t group_rows : {1, 7, 50}) {
    write(numbered(kRows), {.group_rows = group_rows});
    for (int64_t skip = 0; skip <= kRows + 1; ++skip) {
      auto reader = open_parquet(definition(columns), files_, kPath);
      ASSERT_TRUE(reader.ok()) << reader.status();
      EXPECT_EQ((*reader)->skip(skip).value(), std::min(skip, kRows));
      const auto block = (*reader)->next();
      ASSERT_TRUE(block.ok()) << block.status();
      ASSERT_EQ(*block == nullptr, skip >= kRows) << skip;
      if (*block != nullptr) {
        EXPECT_EQ((*block)->columns[0].values[0].item<int64_t>(), skip);
      }
    }
  }
}

TEST_F(Parquet, SkipsBetweenBlocks) {
  constexpr int64_t kRows = 2000;
  const std::vector<Column> columns = {{"id", at::kLong}, text_column("text", 64 << 10)};
  std::mt19937 random(7);
  for (const int64_t group_rows : {90, 300, 2000}) {
    write(numbered(kRows), {.group_rows = group_rows});
    auto reader = open_parquet(definition(columns), files_, kPath);
    ASSERT_TRUE(reader.ok()) << reader.status();
    int64_t row = 0;
    while (true) {
      const int64_t skip = random() % 3 == 0 ? random() % 400 : 0;
      const int64_t skipped = std::min(skip, kRows - row);
      ASSERT_EQ((*reader)->skip(skip).value(), skipped);
      row += skipped;
      const auto block = (*reader)->next();
      ASSERT_TRUE(block.ok()) << block.status();
      if (*block == nullptr) break;
      EXPECT_TRUE(at::equal((*block)->columns[0].values, at::arange(row, row + (*block)->rows)));
      row += (*block)->rows;
    }
    EXPECT_EQ(row, kRows);
  }
}

TEST_F(Parquet, ErrorsNameTheRowAfterSkips) {
  write(numbered(300), {.group_rows = 60});
  const std::vector<Column> columns = {{"id", at::kByte}, text_column("text", 256 << 10)};
  auto reader = open_parquet(definition(columns), files_, kPath);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader)->next().ok());
  ASSERT_EQ((*reader)->skip(170).value(), 170);
  const absl::Status status = rest_of(**reader, 2).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("row 256 (counted from 0)"));
}

TEST_F(Parquet, SkippedRowGroupsAreNotRead) {
  std::string bytes =
      parquet_bytes(*table_of(numbered(100)), {.group_rows = 50, .checksums = true});
  bytes[place_of(bytes, 0, 0).first + place_of(bytes, 0, 0).second - 1] ^= 1;
  write(bytes);
  const std::vector<Column> columns = {{"id", at::kLong}};
  expect_error(columns, ErrorCode::kDataLoss, {"row group 0"});
  auto reader = open_parquet(definition(columns), files_, kPath);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader)->skip(50).ok());
  const auto rows = rest_of(**reader, 1);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_TRUE(at::equal(rows->columns[0], at::arange(50, 100)));
}

TEST_F(Parquet, ADamagedPageNamesItsColumn) {
  const std::vector<Column> columns = {{"id", at::kLong}, text_column("text", 1)};
  const auto table = table_of(numbered(3000));
  std::string bytes = parquet_bytes(*table, {.group_rows = 1000, .checksums = true});
  auto [begin, size] = place_of(bytes, 1, 1);
  bytes[begin + size - 1] ^= 1;
  write(bytes);
  expect_error(columns, ErrorCode::kDataLoss, {"row group 1", "column 'text'", "CRC"});

  bytes = parquet_bytes(*table, {.group_rows = 1000, .compression = parquet::Compression::ZSTD});
  std::tie(begin, size) = place_of(bytes, 2, 0);
  for (size_t i = begin + size / 2; i < begin + size; ++i) bytes[i] = '\xff';
  write(bytes);
  expect_error(columns, ErrorCode::kDataLoss, {"row group 2", "column 'id'"});
}

TEST_F(Parquet, RejectsATruncatedFile) {
  const std::string bytes = parquet_bytes(*table_of(numbered(10)));
  for (size_t length = 0; length < bytes.size(); ++length) {
    write(bytes.substr(0, length));
    const absl::Status status = read({{"id", at::kLong}}).status();
    ASSERT_EQ(error_code(status), ErrorCode::kDataLoss) << length << ": " << status;
  }
}

TEST_F(Parquet, SurvivesEveryDamagedByte) {
  const std::string bytes = parquet_bytes(
      *table_of({{"id", arrow::int64(), "[1, null, 3]"},
                 {"text", arrow::dictionary(arrow::int32(), arrow::utf8()), R"(["a", "b", "a"])"},
                 {"list", arrow::list(arrow::int32()), "[[1], [], [2, 3]]"}}),
      {.group_rows = 2});
  const std::vector<Column> columns = {
      {"id", at::kLong, {}, 0}, text_column("text", 4), {"list", at::kInt, {-1}}};
  std::mt19937 random(11);
  int damaged = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string copy = bytes;
    copy[i] ^= static_cast<char>(1 + random() % 255);
    write(copy);
    const auto rows = read(columns, 1);
    if (!rows.ok()) ++damaged;
  }
  EXPECT_GT(damaged, 100);
}

TEST_F(Parquet, ErrorsOfTheDiskAreKept) {
  const std::string path = ::testing::TempDir() + "shortened.parquet";
  std::filesystem::remove(path);
  ASSERT_TRUE(Files::local().write_text(path, parquet_bytes(*table_of(numbered(1000)))).ok());
  auto reader = open_parquet(definition({{"id", at::kLong}}), Files::local(), path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::filesystem::resize_file(path, 10);
  const absl::Status status = (*reader)->next().status();
  EXPECT_EQ(error_code(status), ErrorCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ends"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace trireme::internal
