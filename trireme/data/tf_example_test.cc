#include "trireme/data/tf_example.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/tf_test_bytes.h"

namespace trireme::internal {
namespace {

using TfFiles = proto::DatasetStep::Files;
using testing::HasSubstr;

// Decodes examples that are valid.
BlockPtr decode_examples(const TfFiles& def, const std::vector<std::string>& examples) {
  const auto schema = value_or_throw(TfExampleSchema::make(def.columns()));
  TfExampleRows rows(*schema, static_cast<int64_t>(examples.size()));
  for (const std::string& example : examples) EXPECT_EQ(rows.add(example), "");
  return rows.finish();
}

// Returns what is wrong with an example.
std::string tf_fault_of(const TfFiles& def, const std::string& example) {
  const auto schema = value_or_throw(TfExampleSchema::make(def.columns()));
  return TfExampleRows(*schema, 1).add(example);
}

std::string definition_error(const TfFiles& def) {
  const auto schema = TfExampleSchema::make(def.columns());
  return schema.ok() ? "" : describe(schema.status());
}

TfFiles one_column(c10::ScalarType dtype, std::vector<int64_t> sizes = {}) {
  TfFiles def;
  add_tf_column(def, "x", dtype, std::move(sizes));
  return def;
}

// Decodes one example with the feature 'x' into a ragged column of int64.
std::vector<int64_t> decode_ints(const std::string& feature) {
  const BlockPtr block =
      decode_examples(one_column(at::kLong, {-1}), {tf_example(tf_entry("x", feature))});
  const at::Tensor& values = block->columns.at(0).values;
  const auto* data = values.const_data_ptr<int64_t>();
  return {data, data + values.numel()};
}

TEST(TfExample, ReadsAllTypes) {
  TfFiles def;
  add_tf_column(def, "int64", at::kLong, {2});
  add_tf_column(def, "int32", at::kInt, {2});
  add_tf_column(def, "uint8", at::kByte, {2});
  add_tf_column(def, "bool", at::kBool, {2});
  add_tf_column(def, "float32", at::kFloat, {2});
  add_tf_column(def, "float64", at::kDouble, {2, 1});
  add_tf_text(def, "text", 5);
  const int64_t least = std::numeric_limits<int64_t>::min();
  const BlockPtr block = decode_examples(
      def,
      {tf_example(tf_entry("int64", tf_ints({least, -1})) +
                  tf_entry("int32", tf_ints({-2147483648, 2147483647})) +
                  tf_entry("uint8", tf_ints({0, 255})) + tf_entry("bool", tf_ints({0, 1})) +
                  tf_entry("float32", tf_floats({0.5, -2})) +
                  tf_entry("float64", tf_floats({1, 2.5})) + tf_entry("text", tf_texts({"abc"})) +
                  tf_entry("unused", tf_texts({"a", "b"})))});
  EXPECT_EQ(block->rows, 1);
  ASSERT_EQ(block->columns.size(), 7);
  const auto expect = [&](int column, const at::Tensor& values) {
    EXPECT_TRUE(block->columns[column].values.equal(values)) << block->columns[column].values;
    EXPECT_TRUE(block->columns[column].values.is_contiguous());
  };
  expect(0, at::tensor({least, int64_t{-1}}).view({1, 2}));
  expect(1, at::tensor({int64_t{-2147483648}, int64_t{2147483647}}).to(at::kInt).view({1, 2}));
  expect(2, at::tensor({0, 255}, at::kByte).view({1, 2}));
  expect(3, at::tensor({0, 1}).to(at::kBool).view({1, 2}));
  expect(4, at::tensor({0.5, -2.0}, at::kFloat).view({1, 2}));
  expect(5, at::tensor({1.0, 2.5}, at::kDouble).view({1, 2, 1}));
  expect(6, at::tensor({97, 98, 99, 0, 0}, at::kByte).view({1, 5}));
}

// Lists of values of every length in bytes, so that values begin and end everywhere in a word.
TEST(TfExample, ReadsVarintsOfEveryLength) {
  std::mt19937_64 random(1);
  for (int count = 0; count < 300; ++count) {
    std::vector<int64_t> values(count);
    const uint64_t most_bits = 1 + random() % 64;
    for (int64_t& value : values) {
      value = static_cast<int64_t>(random() >> (63 - random() % most_bits));
    }
    EXPECT_EQ(decode_ints(tf_ints(values)), values);
    EXPECT_EQ(decode_ints(tf_ints(values, false)), values);
    EXPECT_EQ(decode_ints(tf_ints(values, false) + tf_ints(values)).size(), 2 * values.size());
  }
}

// Processors with an instruction for it do not use this function.
TEST(TfExample, PacksVarintsWithoutTheInstruction) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = random() >> (8 + random() % 56);
    uint64_t word = 0;
    const std::string bytes = tf_varint(value);
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(&word));
    EXPECT_EQ(pack_tf_varint(word), value);
  }
}

TEST(TfExample, ReadsPackedAndUnpackedFloats) {
  const std::vector<float> values = {1, 2, 3};
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const BlockPtr block =
        decode_examples(one_column(dtype, {3}),
                        {tf_example(tf_entry("x", tf_floats(values))),
                         tf_example(tf_entry("x", tf_floats(values, false))),
                         tf_example(tf_entry("x", tf_floats({1}) + tf_floats({2, 3}, false)))});
    EXPECT_TRUE(block->columns.at(0).values.equal(
        at::tensor({1, 2, 3, 1, 2, 3, 1, 2, 3}).to(dtype).view({3, 3})));
  }
}

TEST(TfExample, ReadsRaggedColumns) {
  TfFiles def;
  add_tf_column(def, "x", at::kInt, {-1, 2});
  add_tf_text(def, "text", -1);
  std::vector<std::string> examples;
  std::vector<int32_t> values;
  for (int i = 0; i < 50; ++i) {
    std::vector<int64_t> row(2 * (i % 4), i);
    values.insert(values.end(), row.begin(), row.end());
    examples.push_back(tf_example(tf_entry("text", tf_texts({std::string(i % 3, 'a')})) +
                                  tf_entry("x", tf_ints(row))));
  }
  const BlockPtr block = decode_examples(def, examples);
  const BlockColumn &numbers = block->columns.at(0), &texts = block->columns.at(1);
  EXPECT_EQ(block->rows, 50);
  ASSERT_EQ(numbers.offsets.size(), 51);
  ASSERT_EQ(texts.offsets.size(), 51);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(numbers.offsets[i + 1] - numbers.offsets[i], i % 4);
    EXPECT_EQ(texts.offsets[i + 1] - texts.offsets[i], i % 3);
  }
  EXPECT_TRUE(numbers.values.equal(at::tensor(values, at::kInt).view({-1, 2})));
  EXPECT_EQ(texts.values.numel(), texts.offsets.back());
  EXPECT_TRUE(texts.values.eq('a').all().item<bool>());
}

TEST(TfExample, FillsMissingFeatures) {
  TfFiles def;
  add_tf_column(def, "x", at::kFloat, {3})->set_missing(-1.5);
  add_tf_column(def, "y", at::kLong)->set_missing(7);
  add_tf_column(def, "ragged", at::kLong, {-1})->set_missing(0);
  add_tf_text(def, "text", 2)->set_missing(0);
  // Missing are: all, the values of features, the kinds of features, the values of lists.
  const BlockPtr block = decode_examples(
      def, {"", tf_example(tf_entry("x", "") + tf_entry("y", "")),
            tf_example(tf_field(1, tf_field(1, "x")) + tf_field(1, tf_field(1, "text"))),
            tf_example(tf_entry("x", tf_floats({})) + tf_entry("y", tf_ints({}, false)) +
                       tf_entry("ragged", tf_ints({})) + tf_entry("text", tf_texts({})))});
  EXPECT_TRUE(block->columns.at(0).values.eq(-1.5).all().item<bool>());
  EXPECT_TRUE(block->columns.at(1).values.equal(at::tensor({7, 7, 7, 7}, at::kLong)));
  EXPECT_EQ(block->columns.at(2).offsets, (std::vector<int64_t>(5, 0)));
  EXPECT_EQ(block->columns.at(3).values.sizes().vec(), (std::vector<int64_t>{4, 2}));
  EXPECT_TRUE(block->columns[3].values.eq(0).all().item<bool>());
}

TEST(TfExample, NamesWhatIsWrong) {
  const auto x = [](const std::string& feature) { return tf_example(tf_entry("x", feature)); };
  EXPECT_THAT(tf_fault_of(one_column(at::kFloat), ""), HasSubstr("feature 'x' is missing"));
  EXPECT_THAT(tf_fault_of(one_column(at::kLong, {-1}), ""), HasSubstr("feature 'x' is missing"));
  EXPECT_EQ(tf_fault_of(one_column(at::kFloat, {4}), x(tf_floats({1, 2, 3}))),
            "feature 'x' has 3 values, expected 4");
  EXPECT_EQ(tf_fault_of(one_column(at::kLong, {2, 2}), x(tf_ints({1, 2, 3, 4, 5}))),
            "feature 'x' has 5 values, expected 4");
  EXPECT_EQ(tf_fault_of(one_column(at::kLong), x(tf_ints({}))),
            "feature 'x' has 0 values, expected 1");
  EXPECT_EQ(tf_fault_of(one_column(at::kLong, {-1, 4}), x(tf_ints({1, 2, 3}))),
            "feature 'x' has 3 values, expected a multiple of 4");
  EXPECT_EQ(tf_fault_of(one_column(at::kFloat), x(tf_ints({1}))),
            "feature 'x' is an Int64List, column has float32");
  EXPECT_EQ(tf_fault_of(one_column(at::kByte), x(tf_texts({"a"}))),
            "feature 'x' is a BytesList, column has uint8");
  EXPECT_EQ(tf_fault_of(one_column(at::kBool), x(tf_ints({2}))),
            "feature 'x' has the value 2, which does not fit into bool");
  EXPECT_EQ(tf_fault_of(one_column(at::kByte, {3}), x(tf_ints({0, -1, 3}))),
            "feature 'x' has the value -1, which does not fit into uint8");
  EXPECT_EQ(tf_fault_of(one_column(at::kInt, {-1}), x(tf_ints({2147483648}))),
            "feature 'x' has the value 2147483648, which does not fit into int32");
  TfFiles text;
  add_tf_text(text, "x", 3);
  EXPECT_EQ(tf_fault_of(text, x(tf_texts({"abc"}))), "");
  EXPECT_EQ(tf_fault_of(text, x(tf_texts({"abcd"}))),
            "feature 'x' has a text of 4 bytes, but the column has 3");
  EXPECT_EQ(tf_fault_of(text, x(tf_texts({"a", "b"}))), "feature 'x' has 2 values, expected 1");
  EXPECT_EQ(tf_fault_of(text, x(tf_floats({1}))), "feature 'x' is a FloatList, column has text");
}

TEST(TfExample, LeavesOutBadRecords) {
  TfFiles def;
  add_tf_column(def, "a", at::kLong, {-1, 2});
  add_tf_column(def, "b", at::kByte, {-1});
  add_tf_column(def, "c", at::kLong);
  const auto schema = value_or_throw(TfExampleSchema::make(def.columns()));
  const auto example = [](int64_t a, int64_t b, int64_t c) {
    return tf_example(tf_entry("a", tf_ints({a, a})) + tf_entry("b", tf_ints({b})) +
                      tf_entry("c", tf_ints(std::vector<int64_t>(c, c))));
  };
  const std::vector<std::string> examples = {example(1, 1, 1), example(2, 2, 0), example(3, 3, 2),
                                             example(4, 300, 1), example(5, 5, 1)};
  TfExampleRows rows(*schema, 5);
  for (const std::string& text : examples) rows.add(text);
  const BlockPtr block = rows.finish();
  EXPECT_EQ(block->rows, 2);
  EXPECT_TRUE(block->columns.at(0).values.equal(at::tensor({1, 1, 5, 5}, at::kLong).view({2, 2})));
  EXPECT_TRUE(block->columns.at(1).values.equal(at::tensor({1, 5}, at::kByte)));
  EXPECT_TRUE(block->columns.at(2).values.equal(at::tensor({1, 1}, at::kLong)));
  EXPECT_EQ(block->columns[0].offsets, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(block->columns[1].offsets, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_TRUE(block->columns[2].offsets.empty());
}

TEST(TfExample, FindsFeaturesInAnyOrder) {
  TfFiles def;
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) {
    if (i % 3 != 0) add_tf_column(def, "feature" + std::to_string(i), at::kLong);
    order.push_back(i);
  }
  std::mt19937_64 random(2);
  std::vector<std::string> examples;
  for (int i = 0; i < 50; ++i) {
    if (i % 4 == 0) std::shuffle(order.begin(), order.end(), random);
    std::string entries;
    for (const int k : order)
      entries += tf_entry("feature" + std::to_string(k), tf_ints({100 * i + k}));
    examples.push_back(tf_example(entries));
  }
  const BlockPtr block = decode_examples(def, examples);
  for (int c = 0; c < def.columns_size(); ++c) {
    const int feature = std::stoi(def.columns(c).name().substr(7));
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(block->columns[c].values[i].item<int64_t>(), 100 * i + feature);
    }
  }
}

TEST(TfExample, MergesAsProtobufDoes) {
  const auto decode = [](const std::string& example) {
    const BlockPtr block = decode_examples(one_column(at::kLong, {-1}), {example});
    const at::Tensor values = block->columns.at(0).values.contiguous();
    const auto* data = values.const_data_ptr<int64_t>();
    return std::vector<int64_t>(data, data + values.numel());
  };
  using Ints = std::vector<int64_t>;
  const std::string one = tf_ints({1}), two = tf_ints({2}), real = tf_floats({0.5});
  // The last entry of a key wins, also over several messages.
  EXPECT_EQ(decode(tf_example(tf_entry("x", one) + tf_entry("x", two))), Ints{2});
  EXPECT_EQ(decode(tf_example(tf_entry("x", one)) + tf_example(tf_entry("x", two))), Ints{2});
  EXPECT_EQ(decode(tf_example(tf_entry("x", real)) + tf_example(tf_entry("x", two))), Ints{2});
  // Parts of a value and lists of the same kind are merged, and a list of another kind replaces.
  EXPECT_EQ(decode_ints(one + two), (Ints{1, 2}));
  EXPECT_EQ(decode_ints(one + real + two), Ints{2});
  EXPECT_EQ(decode_ints(one + two + real + one + two + two), (Ints{1, 2, 2}));
  EXPECT_EQ(decode(tf_example(tf_field(
                1, tf_field(2, one) + tf_field(1, "y") + tf_field(2, two) + tf_field(1, "x")))),
            (Ints{1, 2}));
  // Unknown fields, among them groups and known fields with another wire type, are passed over.
  const std::string group = tf_varint(9 << 3 | 3) + tf_varint(8 << 3 | 3) + tf_field(7, "abc") +
                            tf_varint(8 << 3 | 4) + tf_varint(9 << 3 | 4);
  const std::string unknown = tf_varint(1 << 3) + tf_varint(5) + tf_varint(9 << 3 | 1) +
                              tf_fixed<uint64_t>(1) + group + tf_varint(9 << 3 | 5) +
                              tf_fixed<uint32_t>(1) + tf_field(1000, "abc");
  const std::string list = tf_field(3, tf_varint(1 << 3 | 5) + tf_fixed<uint32_t>(1) + group +
                                           tf_field(1, tf_varint(300)) + tf_field(2, "abc"));
  const std::string entry = tf_field(
      1, unknown + tf_field(1, "x") + unknown + tf_field(2, unknown + list + unknown) + unknown);
  EXPECT_EQ(decode(unknown + tf_field(1, unknown + entry + unknown) + unknown), Ints{300});
}

TEST(TfExample, RejectsMalformedMessages) {
  const TfFiles def = one_column(at::kLong, {-1});
  const auto x = [](const std::string& list) {
    return tf_example(tf_entry("x", tf_field(3, list)));
  };
  const std::string invalid = "its data is not a valid tf.Example; write the record again";
  EXPECT_EQ(tf_fault_of(def, x(tf_field(1, "\x01\x80"))), invalid);  // ends in the middle
  EXPECT_EQ(tf_fault_of(def, x(tf_field(1, "\x80") + tf_field(1, "\x01"))),
            invalid);  // in two parts
  EXPECT_EQ(tf_fault_of(def, x(tf_field(1, std::string(10, '\x80') + '\0'))), invalid);  // too long
  EXPECT_EQ(tf_fault_of(def, x(tf_field(1, std::string(9, '\x80') + '\0'))), "");
  EXPECT_EQ(tf_fault_of(def, x(std::string(1, '\0'))), invalid);          // field 0
  EXPECT_EQ(tf_fault_of(def, x("\x0f")), invalid);                        // wire type 7
  EXPECT_EQ(tf_fault_of(def, x("\x0c")), invalid);                        // end without a group
  EXPECT_EQ(tf_fault_of(def, x("\x0b\x14")), invalid);                    // end of another group
  EXPECT_EQ(tf_fault_of(def, x(std::string(1000000, '\x0b'))), invalid);  // many groups
  EXPECT_EQ(tf_fault_of(def, x("\x0a" + tf_varint(~uint64_t{0}))), invalid);  // length
  EXPECT_EQ(tf_fault_of(one_column(at::kFloat),
                        tf_example(tf_entry("x", tf_field(2, tf_field(1, "abcde"))))),
            invalid);  // five bytes of floats
}

// Any bytes are accepted or rejected. AddressSanitizer sees accesses that are out of bounds.
TEST(TfExample, SurvivesDamagedMessages) {
  TfFiles def;
  add_tf_column(def, "a", at::kLong, {-1});
  add_tf_column(def, "b", at::kFloat, {3});
  add_tf_column(def, "c", at::kByte, {2});
  add_tf_text(def, "d", 4);
  const auto schema = value_or_throw(TfExampleSchema::make(def.columns()));
  const std::string whole =
      tf_example(tf_entry("a", tf_ints({1, 300, -1, 1 << 20, 5, 6, 7, 8, 9, 10, 11, 12})) +
                 tf_entry("b", tf_floats({1, 2, 3})) + tf_entry("c", tf_ints({1, 2}, false)) +
                 tf_entry("d", tf_texts({"abc"})));
  int valid = 0;
  const auto decode = [&](std::string_view bytes) {
    const auto memory = std::make_unique<char[]>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), memory.get());
    TfExampleRows rows(*schema, 1);
    const std::string fault = rows.add({memory.get(), bytes.size()});
    EXPECT_EQ(rows.finish()->rows, fault.empty() ? 1 : 0);
    valid += fault.empty() ? 1 : 0;
    return fault;
  };
  EXPECT_EQ(decode(whole), "");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(decode(whole.substr(0, size)), "");
  }
  valid = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(byte);
      decode(damaged);
    }
  }
  EXPECT_GT(valid, static_cast<int>(whole.size()));  // the bytes that are not changed, and values
}

TEST(TfExample, ChecksTheDefinition) {
  EXPECT_THAT(definition_error({}), HasSubstr("name at least one feature"));
  EXPECT_EQ(definition_error(one_column(at::kLong, {-1, 3})), "");
  EXPECT_THAT(definition_error(one_column(at::kHalf)), HasSubstr("column 'x': its dtype has"));
  EXPECT_THAT(definition_error(one_column(static_cast<c10::ScalarType>(-1))), HasSubstr("dtype"));
  TfFiles def = one_column(at::kLong);
  def.mutable_columns(0)->set_dtype(256 + static_cast<int>(at::kLong));
  EXPECT_THAT(definition_error(def), HasSubstr("its dtype has the number 260"));
  EXPECT_THAT(definition_error(one_column(at::kLong, {0})), HasSubstr("size 0 is 0"));
  EXPECT_THAT(definition_error(one_column(at::kLong, {2, -1})), HasSubstr("size 1 is -1"));
  EXPECT_THAT(definition_error(one_column(at::kLong, {-2})), HasSubstr("size 0 is -2"));
  EXPECT_THAT(definition_error(one_column(at::kByte, {1 << 20, 1 << 20, 1 << 20, 1 << 20})),
              HasSubstr("more than 1073741824 values"));
  EXPECT_THAT(definition_error(one_column(at::kByte, {std::numeric_limits<int64_t>::max(), 2})),
              HasSubstr("more than"));
  EXPECT_THAT(definition_error(one_column(at::kLong, {1 << 28})),
              HasSubstr("bytes for one record"));
  EXPECT_THAT(definition_error(one_column(at::kLong, std::vector<int64_t>(17, 1))),
              HasSubstr("it has 17 sizes"));
  def = one_column(at::kLong);
  add_tf_column(def, "y", at::kLong);
  EXPECT_EQ(definition_error(def), "");
  add_tf_column(def, "x", at::kFloat);
  EXPECT_THAT(definition_error(def), HasSubstr("two columns 'x'"));
  def = one_column(at::kFloat, {3});
  def.mutable_columns(0)->set_is_text(true);
  EXPECT_THAT(definition_error(def), HasSubstr("needs the dtype uint8"));
  def.mutable_columns(0)->set_dtype(static_cast<int>(at::kByte));
  EXPECT_EQ(definition_error(def), "");
  def.mutable_columns(0)->add_sizes(2);
  EXPECT_THAT(definition_error(def), HasSubstr("one size"));
  const auto missing = [](c10::ScalarType dtype, double number) {
    TfFiles def = one_column(dtype);
    def.mutable_columns(0)->set_missing(number);
    return definition_error(def);
  };
  EXPECT_EQ(missing(at::kByte, 255), "");
  EXPECT_THAT(missing(at::kByte, 256), HasSubstr("which does not fit into uint8"));
  EXPECT_THAT(missing(at::kByte, -1), HasSubstr("missing values is -1"));
  EXPECT_THAT(missing(at::kBool, 2), HasSubstr("which does not fit into bool"));
  EXPECT_THAT(missing(at::kLong, 0.5), HasSubstr("which does not fit into int64"));
  EXPECT_THAT(missing(at::kLong, 9223372036854775808.0),
              HasSubstr("which does not fit into int64"));
  EXPECT_THAT(missing(at::kInt, std::nan("")), HasSubstr("which does not fit into int32"));
  EXPECT_EQ(missing(at::kFloat, std::nan("")), "");
  EXPECT_THAT(missing(at::kFloat, 1e300), HasSubstr("which does not fit into float32"));
  EXPECT_EQ(missing(at::kDouble, 1e300), "");
  def = one_column(at::kLong);
  def.mutable_columns(0)->set_name("");
  EXPECT_THAT(definition_error(def), HasSubstr("it has no name"));
}

}  // namespace
}  // namespace trireme::internal
