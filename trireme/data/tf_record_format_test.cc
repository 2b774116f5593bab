#include "trireme/data/tf_record_format.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/tf_test_bytes.h"

namespace trireme::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using TfFormatPtr = std::shared_ptr<const RecordFormat>;

// Returns a format of records with the int64 number 'x' and any number of floats 'y'.
TfFormatPtr x_and_y() {
  proto::DatasetStep::Files def;
  add_tf_column(def, "x", at::kLong);
  add_tf_column(def, "y", at::kFloat, {-1});
  return value_or_throw(make_tf_record_format(def));
}

std::string x_and_y_record(int64_t x) {
  return tf_record(tf_example(tf_entry("x", tf_ints({x})) +
                              tf_entry("y", tf_floats(std::vector<float>(x % 5, 0.5F)))));
}

struct TfDecoded {
  BlockPtr block;
  std::vector<std::pair<size_t, std::string>> bad;  // offset, and what is wrong
};

// Decodes whole records, and leaves out the ones that are not valid. The bytes are copied to memory
// of their exact size, so that AddressSanitizer sees accesses that are out of bounds.
TfDecoded decode_all(const RecordFormat& format, std::string_view bytes, int64_t records) {
  const auto memory = std::make_unique<char[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), memory.get());
  TfDecoded decoded;
  decoded.block =
      value_or_throw(format.decode({.bytes = {memory.get(), bytes.size()}, .records = records},
                                   [&](size_t offset, uint64_t line, const std::string& what) {
                                     EXPECT_EQ(line, 0);
                                     decoded.bad.emplace_back(offset, what);
                                     return absl::OkStatus();
                                   }));
  return decoded;
}

TEST(TfRecordFormat, ReadsAFileWhoseBytesAreKnown) {
  // One record: features { feature { key: "x" value { int64_list { value: 300 } } } }.
  const std::vector<uint8_t> bytes = {
      0x0f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x6d, 0x53, 0x2b, 0x09,  //
      0x0a, 0x0d, 0x0a, 0x0b, 0x0a, 0x01, 0x78, 0x12, 0x06, 0x1a, 0x04, 0x0a,  //
      0x02, 0xac, 0x02, 0x32, 0x7d, 0x1c, 0x98};
  const std::string file(bytes.begin(), bytes.end());
  EXPECT_EQ(file, tf_record(tf_example(tf_entry("x", tf_ints({300})))));
  proto::DatasetStep::Files def;
  add_tf_column(def, "x", at::kLong);
  const TfFormatPtr format = value_or_throw(make_tf_record_format(def));
  const RecordFormat::Whole whole = format->split(file, true, 10);
  EXPECT_EQ(whole.fault, "");
  EXPECT_EQ(whole.bytes, file.size());
  ASSERT_EQ(whole.records, 1);
  const TfDecoded decoded = decode_all(*format, file, 1);
  EXPECT_TRUE(decoded.block->columns.at(0).values.equal(at::tensor({300}, at::kLong)));
}

TEST(TfRecordFormat, SplitsAtEveryLength) {
  const TfFormatPtr format = x_and_y();
  std::string file;
  std::vector<size_t> ends = {0};
  for (int i = 0; i < 6; ++i) {
    file += x_and_y_record(i * 100);
    ends.push_back(file.size());
  }
  for (size_t size = 0; size <= file.size(); ++size) {
    const std::vector<char> bytes(file.begin(), file.begin() + size);
    const auto last = std::upper_bound(ends.begin(), ends.end(), size) - 1;
    for (const bool is_end : {false, true}) {
      const RecordFormat::Whole whole = format->split({bytes.data(), size}, is_end, 1000);
      EXPECT_EQ(whole.bytes, *last);
      EXPECT_EQ(whole.records, last - ends.begin());
      EXPECT_EQ(whole.lines, 0);
      EXPECT_EQ(whole.fault.empty(), !is_end || size == *last) << size << ": " << whole.fault;
      if (whole.fault.empty()) continue;
      EXPECT_THAT(whole.fault, StartsWith("the file ends in the middle of a record: "));
      if (size - *last >= 12) {
        EXPECT_THAT(whole.fault, HasSubstr(": " + std::to_string(last[1] - size) + " bytes are"));
      } else {
        EXPECT_THAT(whole.fault,
                    HasSubstr(": at least " + std::to_string(16 - (size - *last)) + " bytes are"));
      }
    }
  }
  EXPECT_EQ(format->split(file, true, 2).bytes, ends[2]);
  EXPECT_EQ(format->split(file, true, 2).records, 2);
  EXPECT_EQ(format->split(file, true, 0).bytes, 0);
}

TEST(TfRecordFormat, DecodesRecordsInOrder) {
  std::string file;
  std::vector<int64_t> numbers;
  for (int i = 0; i < 100; ++i) {
    file += x_and_y_record(i);
    numbers.push_back(i);
  }
  const TfDecoded decoded = decode_all(*x_and_y(), file, 100);
  const Block& block = *decoded.block;
  EXPECT_EQ(block.rows, 100);
  EXPECT_TRUE(block.columns.at(0).values.equal(at::tensor(numbers)));
  EXPECT_TRUE(block.columns[0].offsets.empty());
  EXPECT_EQ(block.columns.at(1).offsets.size(), 101);
  EXPECT_EQ(block.columns[1].offsets[5], 0 + 1 + 2 + 3 + 4);
  EXPECT_EQ(block.columns[1].values.sizes().vec(), (std::vector<int64_t>{200}));
  EXPECT_EQ(decode_all(*x_and_y(), "", 0).block->rows, 0);
}

TEST(TfRecordFormat, FindsEveryCorruptedByte) {
  const TfFormatPtr format = x_and_y();
  const std::string first = x_and_y_record(1), second = x_and_y_record(123456),
                    third = x_and_y_record(3);
  const std::string file = first + second + third;
  for (size_t i = 0; i < file.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      const size_t begin = i < first.size()                   ? 0
                           : i < first.size() + second.size() ? first.size()
                                                              : first.size() + second.size();
      const RecordFormat::Whole whole = format->split(damaged, true, 1000);
      if (i - begin < 12) {
        EXPECT_THAT(whole.fault, AllOf(HasSubstr("the record's length"), HasSubstr("expected 0x"),
                                       HasSubstr("not a TFRecord file")));
        EXPECT_EQ(whole.bytes, begin);
        continue;
      }
      ASSERT_EQ(whole.records, 3);
      const TfDecoded decoded = decode_all(*format, damaged, 3);
      EXPECT_EQ(decoded.block->rows, 2);
      ASSERT_EQ(decoded.bad.size(), 1);
      EXPECT_EQ(decoded.bad[0].first, begin);
      EXPECT_THAT(decoded.bad[0].second, HasSubstr("the checksum of its data is 0x"));
    }
  }
}

TEST(TfRecordFormat, RejectsHostileLengths) {
  const TfFormatPtr format = x_and_y();
  const std::vector<uint64_t> lengths = {
      (uint64_t{1} << 30) + 1, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0},
      ~uint64_t{0} - 3,        ~uint64_t{0} - 11, ~uint64_t{0} - 15};
  for (const uint64_t length : lengths) {
    const std::string bytes = tf_fixed(length);
    const std::string file = bytes + tf_masked_crc(bytes) + std::string(100, 'x');
    for (const bool is_end : {false, true}) {
      const RecordFormat::Whole whole = format->split(file, is_end, 1000);
      EXPECT_EQ(whole.records, 0);
      EXPECT_THAT(whole.fault, AllOf(HasSubstr("has " + std::to_string(length) + " bytes"),
                                     HasSubstr("at most 1073741824 are allowed")));
    }
    const auto block = format->decode({.bytes = file, .records = 1}, nullptr);
    EXPECT_EQ(error_code(block.status()), ErrorCode::kInternal);
  }
  // The largest length is not a fault as long as more bytes may come.
  const std::string most = tf_fixed(uint64_t{1} << 30);
  EXPECT_EQ(format->split(most + tf_masked_crc(most), false, 1).fault, "");
  EXPECT_THAT(format->split(most + tf_masked_crc(most), true, 1).fault,
              HasSubstr(": 1073741828 bytes are missing"));
}

TEST(TfRecordFormat, ReturnsTheErrorOfABadRecord) {
  const std::string first = x_and_y_record(1);
  const std::string file =
      first + tf_record(tf_example(tf_entry("x", tf_ints({1, 2})))) + x_and_y_record(3);
  const auto block = x_and_y()->decode(
      {.bytes = file, .records = 3}, [&](size_t offset, uint64_t line, const std::string& what) {
        EXPECT_EQ(offset, first.size());
        return make_status(ErrorCode::kDataLoss, "stopped: " + what);
      });
  EXPECT_EQ(error_code(block.status()), ErrorCode::kDataLoss);
  EXPECT_THAT(describe(block.status()), HasSubstr("stopped: feature 'x' has 2 values, expected 1"));
}

TEST(TfRecordFormat, RejectsBlocksThatAreTooLarge) {
  proto::DatasetStep::Files def;
  add_tf_text(def, "x", int64_t{1} << 30);
  const TfFormatPtr format = value_or_throw(make_tf_record_format(def));
  std::string file;
  for (int i = 0; i < 5; ++i) file += tf_record(tf_example(tf_entry("x", tf_texts({"a"}))));
  const auto block = format->decode({.bytes = file, .records = 5}, nullptr);
  EXPECT_EQ(error_code(block.status()), ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace trireme::internal
