// Tests datasets over files: their order, their positions, and their errors.
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset_data.h"
#include "trireme/data/iterator.h"
#include "trireme/data/record_reader.h"
#include "trireme/data/text.h"
#include "trireme/data/tf_test_bytes.h"
#include "trireme/data/used_numbers.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using at::Tensor;
using internal::IteratorPosition;
using testing::ElementsAre;
using testing::HasSubstr;
using Positions = internal::Access<Iterator>;

constexpr int kFiles = 3;

// Text and CSV files with numbered lines in a folder of their own. Files have 4, 5 and 6 records;
// `many` has several pieces.
class FileDatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("trireme_files_" + std::to_string(getpid()));
    std::filesystem::create_directory(folder_);
    int number = 0;
    for (int file = 0; file < kFiles; ++file) {
      std::ofstream text(path("t" + std::to_string(file) + ".txt"));
      std::ofstream csv(path("c" + std::to_string(file) + ".csv"));
      csv << "id,half,word\n";
      for (int i = 0; i < 4 + file; ++i, ++number) {
        text << "line " << number << "\n";
        csv << number << "," << number / 2.0 << ",w" << number << "\n";
      }
    }
    std::ofstream many(path("many.csv"));
    many << "id,label\n";
    for (int i = 0; i < kMany; ++i) many << i << "," << i % 2 << "\n";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  Dataset csv(CsvOptions options = {}) const {
    options.columns = {{.name = "id", .dtype = at::kLong}, text_column("word", 6)};
    return Dataset::csv(path("c*.csv"), options);
  }

  static constexpr int kMany = 200'000;  // about 2 MB, which is several pieces
  std::filesystem::path folder_;
};

std::vector<int64_t> ids_of(Iterator iterator) {
  std::vector<int64_t> ids;
  while (const auto element = iterator.next_optional()) {
    const Tensor flat = (*element)[0].to(at::kLong).contiguous();
    const auto* first = flat.const_data_ptr<int64_t>();
    ids.insert(ids.end(), first, first + flat.numel());
  }
  return ids;
}

std::vector<int64_t> first_ids(int64_t count) {
  std::vector<int64_t> ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = i;
  return ids;
}

Dataset odd_ids(const Dataset& dataset) {
  return dataset.filter(
      [](const Tensor& id, const Tensor&) { return id.remainder(2).eq(1).reshape({}); });
}

TEST_F(FileDatasetTest, ReadsTheLinesOfFilesInOrder) {
  Iterator lines = Dataset::text_lines(path("t*.txt"), {.bytes = 8}).iterator();
  for (int i = 0; i < 15; ++i) EXPECT_EQ(text_of(lines.next()), "line " + std::to_string(i));
  EXPECT_EQ(error_of([&] { lines.next(); }).code(), ErrorCode::kEndOfData);
}

TEST_F(FileDatasetTest, GivesAColumnForEachTensor) {
  const Dataset dataset = csv();
  EXPECT_EQ(to_string(dataset.element_spec()), "(int64[], uint8[6])");
  EXPECT_EQ(dataset.size(), Dataset::kUnknown);
  Iterator iterator = dataset.iterator();
  for (int i = 0; i < 15; ++i) {
    auto [id, word] = iterator.next<2>();
    EXPECT_EQ(id.item<int64_t>(), i);
    EXPECT_EQ(text_of(word), "w" + std::to_string(i));
  }
}

TEST_F(FileDatasetTest, GivesFeaturesAndLabelWithoutColumns) {
  auto [x, y] = Dataset::csv(path("many.csv")).batch(3).iterator().next<2>();
  EXPECT_EQ(x.sizes(), (std::vector<int64_t>{3, 1}));
  EXPECT_TRUE(at::equal(y, at::tensor({0.0F, 1.0F, 0.0F})));
}

TEST_F(FileDatasetTest, BatchesAcrossFilesAndPieces) {
  EXPECT_EQ(ids_of(csv().batch(4).iterator()), first_ids(15));
  for (const int threads : {1, 2, 4}) {
    const Dataset many = Dataset::csv(path("many.csv"), {.threads = threads});
    EXPECT_EQ(ids_of(many.batch(999).iterator()), first_ids(kMany)) << threads;
  }
}

TEST_F(FileDatasetTest, KnowsThatTheLastBatchMayBeSmaller) {
  EXPECT_EQ(csv().batch(4).element_specs().size(), 2);
  EXPECT_EQ(csv().batch(4, {.drop_remainder = true}).element_specs().size(), 1);
  EXPECT_EQ(ids_of(csv().batch(4, {.drop_remainder = true}).iterator()), first_ids(12));
  const Error error = error_of(
      [&] { csv().batch(4).map([](const Tensor& id, const Tensor& word) { return id + 1; }); });
  EXPECT_THAT(error.what(), HasSubstr("put it before batch()"));
}

TEST_F(FileDatasetTest, ContinuesFromEveryPosition) {
  const std::vector<std::pair<const char*, Dataset>> datasets = {
      {"plain", csv()},
      {"batch", csv().batch(4)},
      {"shuffle", csv().shuffle(5, {.seed = 3}).batch(2)},
      {"shuffle_repeat", csv().shuffle(20, {.seed = 3}).repeat(3).batch(4)},
      {"interleave", csv().interleave(2, {.block_length = 2}).repeat(2).batch(3)},
      {"shard", csv().shard(2, 1).repeat(2)},
      {"shard_shuffle", csv().shard(2, 1).shuffle(3, {.seed = 3}).repeat(3).batch(2)},
      {"filter_shuffle", odd_ids(csv()).shuffle(4, {.seed = 3}).repeat(3)},
      {"skip_bad", csv({.skip_bad_records = true}).batch(4)},
      {"take_skip", csv().skip(3).take(9).repeat(2).batch(2)},
  };
  for (const auto& [name, dataset] : datasets) {
    Iterator whole = dataset.iterator({.seed = 7});
    std::vector<IteratorPosition> positions;
    std::vector<Tensor> elements;
    do {
      positions.push_back(Positions::position(whole));
      const auto element = whole.next_optional();
      if (!element) break;
      elements.push_back((*element)[0]);
    } while (true);
    ASSERT_GT(elements.size(), 2U) << name;
    for (size_t k = 0; k < positions.size(); ++k) {
      Iterator rest = dataset.iterator({.seed = 99});
      Positions::restore(rest, positions[k]);
      for (size_t i = k; i < elements.size(); ++i) {
        EXPECT_TRUE(at::equal(rest.next<2>()[0], elements[i])) << name << " " << k << " " << i;
      }
      EXPECT_FALSE(rest.next_optional().has_value()) << name << " " << k;
    }
  }
}

TEST_F(FileDatasetTest, SkipsPiecesWithoutDecodingThem) {
  const Dataset many = Dataset::csv(path("many.csv"), {.threads = 2});
  for (const int64_t count : {1, 30'000, 100'000, kMany - 1, kMany}) {
    Iterator rest = many.iterator();
    if (count == 30'000) rest.next<2>();  // the threads of the reader run
    const int64_t used = count == 30'000 ? 1 : 0;
    Positions::restore(rest, {.seed = 0, .next = static_cast<uint64_t>(count + used)});
    const auto element = rest.next_optional();
    ASSERT_EQ(element.has_value(), count + used < kMany);
    if (element) EXPECT_EQ((*element)[0].item<float>(), static_cast<float>(count + used));
  }
}

TEST_F(FileDatasetTest, InterleavesFilesAsTfDataDoes) {
  EXPECT_THAT(ids_of(csv().interleave(2).iterator()),
              ElementsAre(0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11, 12, 13, 14));
  EXPECT_THAT(ids_of(csv().interleave(9).iterator()),
              ElementsAre(0, 4, 9, 1, 5, 10, 2, 6, 11, 3, 7, 12, 8, 13, 14));
}

TEST_F(FileDatasetTest, TravelsAsPlainData) {
  const Dataset dataset = csv().shuffle(4, {.seed = 1}).batch(4);
  const auto copy = value_or_throw(internal::dataset_from(internal::data_of(dataset)));
  EXPECT_EQ(ids_of(copy.iterator()), ids_of(dataset.iterator()));
}

TEST_F(FileDatasetTest, NamesTheFileAndTheLineOfABadRecord) {
  std::ofstream(path("c9.csv")) << "id,half,word\n1,2,a\n2,3\n3,4,c\n";
  Iterator iterator = Dataset::csv(path("c9.csv")).iterator();
  const Error error = error_of([&] { ids_of(iterator); });
  EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(error.what(), HasSubstr("c9.csv"));
  EXPECT_THAT(error.what(), HasSubstr("line"));

  const uint64_t before = internal::bad_records();
  const Dataset skipping = Dataset::csv(
      path("c9.csv"), {.columns = {{.name = "id", .dtype = at::kLong}}, .skip_bad_records = true});
  EXPECT_THAT(ids_of(skipping.iterator()), ElementsAre(1, 3));
  EXPECT_EQ(internal::bad_records() - before, 1);
}

TEST_F(FileDatasetTest, GivesTheRecordsAroundABadOne) {
  std::ofstream(path("c9.csv")) << "id,half,word\n1,2,a\n2,3,b\n3,4\n4,5,d\n";
  for (const int threads : {1, 2}) {
    Iterator iterator =
        Dataset::csv(path("c9.csv"),
                     {.columns = {{.name = "id", .dtype = at::kLong}}, .threads = threads})
            .iterator();
    EXPECT_EQ(iterator.next().item<int64_t>(), 1);
    EXPECT_EQ(iterator.next().item<int64_t>(), 2);
    EXPECT_THAT(error_of([&] { iterator.next(); }).what(), HasSubstr("line 4"));
    EXPECT_EQ(iterator.next().item<int64_t>(), 4);
    EXPECT_FALSE(iterator.next_optional().has_value());
  }
}

TEST_F(FileDatasetTest, AQuoteThatIsNotClosedCostsItsLineOnly) {
  std::ofstream(path("c9.csv")) << "id,half,word\n1,2,\"a\nb\"\n2,\"3,c\n3,4,d\n4,5,e\n";
  const auto read = [&](bool skip_bad) {
    return Dataset::csv(path("c9.csv"), {.columns = {{.name = "id", .dtype = at::kLong}},
                                         .skip_bad_records = skip_bad});
  };
  const uint64_t before = internal::bad_records();
  EXPECT_THAT(ids_of(read(true).iterator()), ElementsAre(1, 3, 4));
  EXPECT_EQ(internal::bad_records() - before, 1);
  EXPECT_THAT(ids_of(read(true).skip(1).iterator()), ElementsAre(3, 4));
  EXPECT_THAT(error_of([&] { ids_of(read(false).iterator()); }).what(),
              HasSubstr("line 4 (byte 23): has a quote that is not closed"));
}

TEST_F(FileDatasetTest, AcceptsLargeBuffersBeforeLargeBatches) {
  EXPECT_EQ(csv().shuffle(1 << 20).repeat().batch(4096).size(), Dataset::kForever);
  EXPECT_EQ(csv().shard(16, 3).shuffle(100'000).repeat().batch(4096).size(), Dataset::kForever);
}

TEST_F(FileDatasetTest, ContinuesAfterManyRepetitions) {
  const Dataset dataset = csv().shuffle(5, {.seed = 3}).repeat().batch(4);
  const Dataset same = Dataset::range(15).shuffle(5, {.seed = 3}).repeat().batch(4);
  const IteratorPosition far{.seed = 7, .next = uint64_t{1} << 33};
  Iterator files = dataset.iterator(), numbers = same.iterator();
  Positions::restore(files, far);
  Positions::restore(numbers, far);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(at::equal(files.next<2>()[0], numbers.next())) << i;
}

TEST_F(FileDatasetTest, ShufflesOfFewRecordsOfABlockHoldTheseOnly) {
  const Dataset many = Dataset::csv(path("many.csv"));
  const auto rare = [](const Tensor& x, const Tensor&) {
    return x.remainder(64).eq(3).reshape({});
  };
  constexpr int64_t kRead = 20'000;
  std::vector<int64_t> expected;
  for (int64_t id = 3; id < kRead; id += 64) expected.push_back(id);
  for (const Dataset& few : {many.take(kRead).shard(64, 3), many.take(kRead).filter(rare)}) {
    const Dataset shuffled = few.shuffle(100);
    EXPECT_LT(shuffled.iterator().next<2>()[0].storage().nbytes(), 1000) << shuffled.describe();
    std::vector<int64_t> ids = ids_of(shuffled.iterator());
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, expected);
  }
}

TEST_F(FileDatasetTest, ShufflesOfFewRecordsKeepTextsOfAnyLength) {
  const Dataset words = Dataset::csv(
      path("c*.csv"), {.columns = {{.name = "id", .dtype = at::kLong}, text_column("word", -1)}});
  std::vector<int64_t> ids;
  Iterator iterator = words.shard(2, 1).shuffle(4).iterator();
  while (const auto element = iterator.next_optional()) {
    ids.push_back((*element)[0].item<int64_t>());
    EXPECT_EQ(text_of((*element)[1]), "w" + std::to_string(ids.back()));
    EXPECT_LT((*element)[1].storage().nbytes(), 30);
  }
  EXPECT_THAT(ids, testing::UnorderedElementsAre(1, 3, 5, 7, 9, 11, 13));
}

TEST_F(FileDatasetTest, ShortRecordsWithWideColumnsMakeSmallBlocks) {
  const std::string record = internal::tf_record(internal::tf_example(
      internal::tf_entry("review", internal::tf_texts({std::string(80, 'r')}))));
  std::ofstream file(path("reviews"), std::ios::binary);
  for (int i = 0; i < 2500; ++i) file << record;
  file.close();
  for (const int64_t bytes : {64 << 10, 2 << 20}) {
    Iterator reviews =
        Dataset::tf_records(path("reviews"),
                            {.columns = {text_column("review", bytes)}, .threads = 1})
            .iterator();
    const Tensor review = reviews.next();
    EXPECT_EQ(text_of(review), std::string(80, 'r'));
    EXPECT_LE(review.storage().nbytes(), 16 << 20);
  }
}

TEST_F(FileDatasetTest, AnEmptyFileHasNoElementsHoweverOftenItIsRepeated) {
  std::ofstream(path("c9.csv")) << "id,half,word\n";
  const Dataset empty = Dataset::csv(path("c9.csv")).repeat().batch(8);
  for (const Dataset& dataset : {empty, empty.shuffle(4), empty.take(5).shuffle(4)}) {
    Iterator iterator = dataset.iterator();
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(iterator.next_optional()) << dataset.describe();
    Positions::restore(iterator, {.seed = 7, .next = 3});
    EXPECT_FALSE(iterator.next_optional()) << dataset.describe();
  }
}

TEST_F(FileDatasetTest, NamesAMissingFile) {
  const Error none = error_of([&] { Dataset::text_lines(path("x*.txt")); });
  EXPECT_EQ(none.code(), ErrorCode::kNotFound);
  EXPECT_THAT(none.what(), HasSubstr("x*.txt"));
  Iterator iterator = Dataset::text_lines(path("gone.txt")).iterator();
  const Error error = error_of([&] { iterator.next(); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_THAT(error.what(), HasSubstr("gone.txt"));
}

TEST_F(FileDatasetTest, ListsColumnsThatTheFilesDoNotHave) {
  const Error error =
      error_of([&] { Dataset::csv(path("many.csv"), {.columns = {{.name = "price"}}}); });
  EXPECT_THAT(error.what(), HasSubstr("'price'"));
  EXPECT_THAT(error.what(), HasSubstr("many.csv"));
}

}  // namespace
}  // namespace trireme
