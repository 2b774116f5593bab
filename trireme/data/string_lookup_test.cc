#include "trireme/data/string_lookup.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset_data.h"
#include "trireme/data/text.h"
#include "trireme/function/function.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> numbers_in(const Tensor& ids) {
  const Tensor flat = ids.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// Looks up texts of the width of the lookup's option.
std::vector<int64_t> ids_of(const StringLookup& lookup, const std::vector<std::string>& texts,
                            int64_t bytes = 32) {
  return numbers_in(lookup(text_tensor(texts, bytes)));
}

// Returns entries that differ in all the places in which text can differ.
std::vector<std::string> entries(int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(std::string(i % 23, 'x') + std::to_string(i) + (i % 3 == 0 ? "\xff" : ""));
  }
  return all;
}

TEST(StringLookup, EntriesComeAfterTheUnknown) {
  const StringLookup lookup({"ram", "oar", "sail"});
  EXPECT_THAT(ids_of(lookup, {"sail", "ram", "grain", "oar", "", "rams", "ra"}),
              ElementsAre(3, 1, 0, 2, 0, 0, 0));
  EXPECT_EQ(lookup.size(), 4);
  EXPECT_THAT(lookup.vocabulary(), ElementsAre("ram", "oar", "sail"));
}

TEST(StringLookup, WithoutBucketsUnknownTextIsMinusOne) {
  const StringLookup lookup({"ram", "oar"}, {.oov_buckets = 0});
  EXPECT_THAT(ids_of(lookup, {"oar", "grain", "ram"}), ElementsAre(1, -1, 0));
  EXPECT_EQ(lookup.size(), 2);
}

TEST(StringLookup, SpreadsUnknownTextOverTheBuckets) {
  const StringLookup lookup({"ram", "oar"}, {.oov_buckets = 4});
  std::vector<int> in_bucket(4);
  // Texts of eight bytes that differ in the last one, or in one of a later word.
  for (int i = 0; i < 250; ++i) {
    const std::string end(1, static_cast<char>(1 + i));
    for (const std::string& text : {"abcdefg" + end, std::string(20, 'y') + end}) {
      const int64_t id = ids_of(lookup, {text})[0];
      ASSERT_GE(id, 0);
      ASSERT_LT(id, 4);
      ++in_bucket[id];
    }
  }
  for (const int count : in_bucket) EXPECT_GT(count, 70);
  EXPECT_THAT(ids_of(lookup, {"oar", "ram"}), ElementsAre(5, 4));
}

TEST(StringLookup, ABucketDependsNeitherOnTheWidthNorOnTheVocabulary) {
  const StringLookup narrow({"ram", "oar"}, {.oov_buckets = 1000, .bytes = 7});
  const StringLookup wide({"sail"}, {.oov_buckets = 1000, .bytes = 64});
  EXPECT_EQ(ids_of(narrow, {"grain", "amphora", ""}, 7),
            ids_of(wide, {"grain", "amphora", ""}, 64));
}

TEST(StringLookup, FindsEveryEntryOfALargeVocabulary) {
  for (const int64_t bytes : {30, 32}) {
    const std::vector<std::string> all = entries(20'000);
    const StringLookup lookup(all, {.bytes = bytes});
    std::vector<int64_t> expected(all.size());
    for (size_t i = 0; i < all.size(); ++i) expected[i] = static_cast<int64_t>(i) + 1;
    EXPECT_EQ(ids_of(lookup, all, bytes), expected);
    std::vector<std::string> others;
    for (const std::string& entry : all) others.push_back(entry + "!");
    EXPECT_EQ(ids_of(lookup, others, bytes), std::vector<int64_t>(all.size(), 0));
  }
}

TEST(StringLookup, EntriesThatDifferInTheLastBytesOfTwoWordsAreFound) {
  std::vector<std::string> all;
  for (int a = 1; a < 200; ++a) {
    for (int b = 1; b < 200; ++b) {
      all.push_back("abcdefg" + std::string(1, static_cast<char>(a)) + "abcdefg" +
                    std::string(1, static_cast<char>(b)));
    }
  }
  const StringLookup lookup(all, {.oov_buckets = 0, .bytes = 16});
  const std::vector<int64_t> ids = ids_of(lookup, all, 16);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(ids[i], static_cast<int64_t>(i));
}

TEST(StringLookup, TakesTextOfAnyShapeAndStrides) {
  const StringLookup lookup({"a", "b", "c"}, {.bytes = 5});
  const Tensor text = text_tensor({"a", "b", "c", "d", "b", "a"}, 5);
  EXPECT_EQ(lookup(text[1]).dim(), 0);
  EXPECT_EQ(lookup(text[1]).item<int64_t>(), 2);
  const Tensor square = text.view({2, 3, 5});
  EXPECT_EQ(lookup(square).sizes().vec(), (std::vector<int64_t>{2, 3}));
  EXPECT_THAT(numbers_in(lookup(square.transpose(0, 1))), ElementsAre(1, 0, 2, 2, 3, 1));
  EXPECT_THAT(numbers_in(lookup(text.t().contiguous().t())), ElementsAre(1, 2, 3, 0, 2, 1));
  EXPECT_EQ(lookup(text.narrow(0, 0, 0)).sizes().vec(), (std::vector<int64_t>{0}));
}

TEST(StringLookup, IsCapturedInFunctions) {
  const StringLookup lookup({"ram", "oar"}, {.oov_buckets = 3});
  const std::vector<std::string> texts = {"oar", "grain", "ram", "amphora"};
  auto doubled = function("doubled", [&](const Tensor& text) { return lookup(text) * 2; });
  const Tensor text = text_tensor(texts, 32);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(doubled(text).equal(lookup(text) * 2));
  // The second has other data than the capture has seen, and other strides.
  EXPECT_TRUE(doubled(text.flip(0)).equal(lookup(text.flip(0)) * 2));
  const Tensor strided = text.t().contiguous().t();
  EXPECT_TRUE(doubled(strided).equal(lookup(text) * 2));
}

// Sends the dataset as plain data, as it comes to a worker, where only permitted operators run.
TEST(StringLookup, MapsTheElementsOfADatasetThatWasSent) {
  const StringLookup lookup({"ram", "oar"}, {.oov_buckets = 3, .bytes = 12});
  const Tensor text = text_tensor({"oar", "grain", "ram", "amphora", "oar"}, 12);
  const auto sent = [](const Dataset& dataset) {
    return *internal::dataset_from(internal::data_of(dataset));
  };
  const Dataset rows = Dataset::from_tensors({text});
  Iterator single = sent(rows.map(lookup)).iterator();
  for (int64_t i = 0; i < 5; ++i) EXPECT_TRUE(single.next().equal(lookup(text[i])));
  Iterator batches = sent(rows.batch(2).map(lookup)).iterator();
  for (int64_t i = 0; i < 5; i += 2) {
    EXPECT_TRUE(batches.next().equal(lookup(text.slice(0, i, i + 2))));
  }
}

TEST(StringLookup, ReadsAFileWithOneEntryPerLine) {
  const std::string path = testing::TempDir() + "/string_lookup_test_vocabulary.txt";
  const auto from = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return StringLookup::from_file(path, {.bytes = 8});
  };
  EXPECT_THAT(from("ram\noar\n").vocabulary(), ElementsAre("ram", "oar"));
  EXPECT_THAT(from("ram\r\noar").vocabulary(), ElementsAre("ram", "oar"));
  EXPECT_THAT(error_text([&] { from("ram\noar\nram\n"); }),
              AllOf(HasSubstr("StringLookup of '" + path + "'"),
                    HasSubstr("1 entry occurs more than once in the vocabulary: 'ram'")));
  EXPECT_THAT(error_text([&] { from(""); }), HasSubstr("the vocabulary is empty"));
  std::remove(path.c_str());
  const Error missing = error_of([&] { StringLookup::from_file(path); });
  EXPECT_EQ(missing.code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.what(), HasSubstr(path));
}

TEST(StringLookup, RejectsEntriesThatItCannotHold) {
  EXPECT_THAT(
      error_text([] {
        StringLookup({"a", "b", "a", "c", "b", "a"});
      }),
      HasSubstr("StringLookup: 2 entries occur more than once in the vocabulary: 'a', 'b'"));
  EXPECT_THAT(error_text([] {
                StringLookup({"ram", "amphora"}, {.bytes = 5});
              }),
              HasSubstr("StringLookup: 1 of 2 texts have more than 5 bytes: 'amphora'"));
  EXPECT_THAT(error_text([] { StringLookup({"a"}, {.oov_buckets = -1}); }),
              HasSubstr("oov_buckets is -1"));
  EXPECT_THAT(error_text([] { StringLookup({"a"}, {.bytes = 0}); }), HasSubstr("bytes is 0"));
}

TEST(StringLookup, RejectsTensorsThatAreNotItsText) {
  const StringLookup lookup({"a"}, {.bytes = 8});
  EXPECT_THAT(error_text([&] {
                lookup(at::zeros({3, 9}, at::kByte));
              }),
              HasSubstr("the text is (uint8[3, 9]); it must be uint8 with a last size of 8"));
  EXPECT_THAT(error_text([&] { lookup(at::zeros({3, 8})); }), HasSubstr("(float32[3, 8])"));
  EXPECT_THAT(error_text([&] { lookup(at::zeros({}, at::kByte)); }), HasSubstr("(uint8[])"));
}

}  // namespace
}  // namespace trireme
