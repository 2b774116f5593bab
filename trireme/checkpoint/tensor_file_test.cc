#include "trireme/checkpoint/tensor_file.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/machine.h"
#include "trireme/base/status.h"
#include "trireme/testing/unsynced_files.h"

namespace trireme::internal {
namespace {

// Returns a header with the right length before it.
std::string with_length(const std::string& json) {
  std::string header;
  for (int i = 0; i < 8; ++i) header.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * i)));
  return header + json;
}

TEST(TensorFileLayout, PutsLargerElementsFirstAndAlignsTheData) {
  const std::vector<TensorToSave> tensors = {
      {"b", at::kFloat, {2, 3}, nullptr, 24}, {"flag", at::kBool, {3}, nullptr, 3},
      {"a", at::kFloat, {1}, nullptr, 4},     {"long", at::kLong, {}, nullptr, 8},
      {"none", at::kDouble, {0}, nullptr, 0}, {"half", at::kHalf, {5}, nullptr, 10}};
  ASSERT_TRUE(check_tensors(tensors).ok());
  const TensorFileLayout layout(tensors);
  EXPECT_EQ(layout.header().size() % kDirectBlock, 0u);
  std::vector<std::string> names;
  uint64_t end = layout.header().size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorToSave& tensor = layout.tensors()[i];
    names.push_back(tensor.name);
    EXPECT_EQ(layout.offset(i), end);
    EXPECT_EQ(layout.offset(i) % c10::elementSize(tensor.dtype), 0u);
    EXPECT_EQ(tensors[layout.given(i)].name, tensor.name);
    end += tensor.bytes;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"long", "none", "a", "b", "half", "flag"}));
  EXPECT_EQ(layout.bytes(), end);

  const SavedFile file = layout.file("x");
  EXPECT_EQ(file.bytes, end);
  EXPECT_EQ(file.header_bytes, layout.header().size());
  EXPECT_EQ(file.header_crc, crc32c(layout.header().data(), layout.header().size()));
  const auto header = parse_safetensors_header(layout.header(), layout.bytes());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->metadata.at("format"), "pt");
  ASSERT_EQ(header->tensors.size(), tensors.size());
  for (const SafetensorsEntry& entry : header->tensors) {
    const auto given = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const TensorToSave& t) { return t.name == entry.name; });
    ASSERT_NE(given, tensors.end());
    EXPECT_EQ(entry.dtype, given->dtype);
    EXPECT_EQ(entry.sizes, given->sizes);
    EXPECT_EQ(entry.end - entry.begin, given->bytes);
  }
}

TEST(TensorFile, IsWrittenInBlocksWithChecksums) {
  UnsyncedFiles files;
  std::mt19937 random(3);
  std::vector<std::string> contents = {std::string(9 << 20, 0), std::string(5, 0), "",
                                       std::string((4 << 20) - 4096, 0)};
  std::vector<TensorToSave> tensors;
  for (size_t i = 0; i < contents.size(); ++i) {
    for (size_t k = 0; k < contents[i].size(); k += 97) {
      contents[i][k] = static_cast<char>(random());
    }
    tensors.push_back({absl::StrCat("t", i),
                       at::kByte,
                       {int64_t(contents[i].size())},
                       contents[i].data(),
                       contents[i].size()});
  }
  const auto written = write_tensor_file(files, "/file", tensors);
  ASSERT_TRUE(written.ok()) << written.status();
  const std::string bytes = files.contents("/file");
  EXPECT_EQ(written->file.name, "file");
  EXPECT_EQ(written->file.bytes, bytes.size());
  EXPECT_EQ(written->file.header_crc, crc32c(bytes.data(), written->file.header_bytes));
  for (size_t i = 0; i < contents.size(); ++i) {
    const SavedTensor& saved = written->tensors[i];
    EXPECT_EQ(saved.name, tensors[i].name);
    EXPECT_TRUE(bytes.substr(saved.offset, saved.bytes) == contents[i]) << i;
    EXPECT_EQ(saved.crc, crc32c(contents[i].data(), contents[i].size())) << i;
  }
  auto input = value_or_throw(files.open("/file", Links::kFollow));
  EXPECT_EQ(value_or_throw(read_safetensors_header(*input, "/file")).tensors.size(), 4u);
}

TEST(TensorFile, IsRemovedIfItCannotBeWritten) {
  const TensorToSave tensor = {"t", at::kByte, {3}, "abc", 3};
  for (int fail = 1; fail <= 3; ++fail) {
    UnsyncedFiles files;
    files.fail_at(fail, ErrorCode::kResourceExhausted);
    EXPECT_EQ(error_code(write_tensor_file(files, "/file", {tensor}).status()),
              ErrorCode::kResourceExhausted);
    EXPECT_TRUE(value_or_throw(files.list("/")).empty()) << fail;
  }
}

TEST(TensorFile, RejectsTensorsThatTheFormatDoesNotHave) {
  const TensorToSave good = {"a", at::kByte, {3}, "abc", 3};
  const std::vector<TensorToSave> bad = {{"", at::kByte, {3}, "abc", 3},
                                         {"__metadata__", at::kByte, {3}, "abc", 3},
                                         {"\xff", at::kByte, {3}, "abc", 3},
                                         {"a", at::kByte, {3}, "abc", 3},
                                         {"b", at::kByte, {4}, "abc", 3},
                                         {"b", at::kByte, {-1, -3}, "abc", 3},
                                         {"b", at::kComplexDouble, {1}, "0123456789abcdef", 16}};
  for (const TensorToSave& tensor : bad) {
    UnsyncedFiles files;
    EXPECT_EQ(error_code(write_tensor_file(files, "/file", {good, tensor}).status()),
              ErrorCode::kInvalidArgument)
        << tensor.name;
    EXPECT_TRUE(value_or_throw(files.list("/")).empty());
  }
}

TEST(SafetensorsHeader, ReadsHeadersOfOthers) {
  // Keys in any order, no metadata, offsets in another order than the names.
  const std::string header =
      with_length(R"({"b":{"shape":[2],"data_offsets":[0,4],"dtype":"F16"},)"
                  R"("a":{"dtype":"BF16","shape":[],"data_offsets":[4,6]}}   )");
  const auto read = parse_safetensors_header(header, header.size() + 6);
  ASSERT_TRUE(read.ok()) << read.status();
  const uint64_t data = header.size();
  EXPECT_EQ(read->bytes, data);
  EXPECT_EQ(read->tensors,
            (std::vector<SafetensorsEntry>{{"b", at::kHalf, {2}, data, data + 4},
                                           {"a", at::kBFloat16, {}, data + 4, data + 6}}));
  EXPECT_TRUE(parse_safetensors_header(with_length("{}"), 10).ok());
}

TEST(SafetensorsHeader, RejectsInvalidHeaders) {
  // Each has four bytes of data.
  const std::vector<std::string> bad = {
      "",
      "[]",
      " {}",
      "{",
      R"({"a":1})",
      R"({"a":{"dtype":"F32","shape":[1]}})",
      R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})",
      R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
      R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
      R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
      R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      R"({"__metadata__":1,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      R"({"__metadata__":{"x":1},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} x)",
      R"({"a":)" + std::string(100'000, '[') + "}",
  };
  for (const std::string& json : bad) {
    const std::string header = with_length(json);
    EXPECT_EQ(error_code(parse_safetensors_header(header, header.size() + 4).status()),
              ErrorCode::kDataLoss)
        << json.substr(0, 200);
  }
  const std::string good = with_length(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})");
  EXPECT_TRUE(parse_safetensors_header(good, good.size() + 4).ok());
  EXPECT_FALSE(parse_safetensors_header(good, good.size() + 5).ok());
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(parse_safetensors_header(good.substr(0, length), good.size() + 4).ok()) << length;
  }
}

TEST(SafetensorsHeader, DeclaringAGreatDealTakesNoMemory) {
  const int64_t before = process_memory().resident;
  const uint64_t declared = 1'000'000'000'000;
  std::string length(8, 0);
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(declared >> (8 * i));
  // The header claims to be long, in a short file and in one that claims to be long itself.
  for (const uint64_t file_bytes : {uint64_t{1000}, 2 * declared, UINT64_MAX}) {
    EXPECT_EQ(error_code(safetensors_header_bytes(length, file_bytes).status()),
              ErrorCode::kDataLoss);
  }
  UnsyncedFiles files;
  ASSERT_TRUE(files.write_text("/file", length + "{}").ok());
  auto file = value_or_throw(files.open("/file", Links::kFollow));
  const absl::Status status = read_safetensors_header(*file, "/file").status();
  EXPECT_EQ(error_code(status), ErrorCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(describe(status), "/file")) << status;
  // A tensor claims to have 10^12 elements.
  const std::string header = with_length(
      R"({"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}})");
  EXPECT_FALSE(parse_safetensors_header(header, header.size() + 4).ok());
  EXPECT_LT(process_memory().resident - before, 32 << 20);
}

}  // namespace
}  // namespace trireme::internal
