#include "trireme/data/ranges.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/dataset.h"
#include "trireme/data/open_stream.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<DatasetRanges> try_ranges_of(const Dataset& dataset) {
  return DatasetRanges::create(Access<Dataset>::last(dataset));
}

DatasetRanges ranges_of(const Dataset& dataset) {
  return value_or_throw(try_ranges_of(dataset));
}

// Returns the numbers of the elements of a range.
std::vector<int64_t> numbers_in(const DatasetRanges& ranges, int64_t range) {
  std::vector<int64_t> numbers;
  const auto stream = open_stream(value_or_throw(ranges.range(range)), 1);
  uint64_t elements = 0;
  while (const auto element = value_or_throw(stream->next())) {
    const at::Tensor flat = (*element)[0].flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) numbers.push_back(flat[i].item<int64_t>());
    ++elements;
  }
  EXPECT_LE(elements, ranges.most_elements(range));
  return numbers;
}

// Checks that the ranges have all numbers below `end` once.
void expect_all(const DatasetRanges& ranges, int64_t end) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < ranges.count(); ++i) {
    const std::vector<int64_t> numbers = numbers_in(ranges, i);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  std::ranges::sort(all);
  ASSERT_EQ(static_cast<int64_t>(all.size()), end);
  for (int64_t i = 0; i < end; ++i) ASSERT_EQ(all[i], i);
}

TEST(DatasetRangesTest, ASourceInMemoryIsCutIntoEqualParts) {
  const DatasetRanges plain = ranges_of(Dataset::range(1000));
  EXPECT_EQ(plain.count(), 4);
  EXPECT_EQ(plain.most_elements(0), 256u);
  EXPECT_EQ(plain.most_elements(3), 1000u - 3 * 256);
  expect_all(plain, 1000);
  // Whole batches, at least 8 of them.
  const DatasetRanges batches = ranges_of(Dataset::range(1000).shuffle(20).batch(50));
  EXPECT_EQ(batches.count(), 3);
  EXPECT_EQ(batches.most_elements(0), 8u);
  EXPECT_EQ(batches.most_elements(2), 4u);
  expect_all(batches, 1000);
  EXPECT_EQ(ranges_of(Dataset::range(0)).count(), 0);
}

TEST(DatasetRangesTest, ALargeShuffleGetsLongRanges) {
  EXPECT_EQ(ranges_of(Dataset::range(100'000).shuffle(1000)).most_elements(0), 1000u);
  EXPECT_EQ(ranges_of(Dataset::range(100'000).shuffle(100'000)).most_elements(0), 3125u);
}

TEST(DatasetRangesTest, MapsHaveTheGraphsForTheShapesOfTheRange) {
  const Dataset mapped =
      Dataset::range(600).batch(32).map([](const at::Tensor& x) { return x * 1; });
  const DatasetRanges ranges = ranges_of(mapped);
  EXPECT_EQ(mapped.element_specs().size(), 2u);
  EXPECT_EQ(ranges.count(), 3);
  expect_all(ranges, 600);
  const DatasetRanges dropped = ranges_of(Dataset::range(520).batch(32, {.drop_remainder = true}));
  EXPECT_EQ(dropped.most_elements(2), 0u);
  expect_all(dropped, 512);
}

std::string write_numbers_csv(int64_t begin, int64_t end) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/ranges_test_", begin, "_", end, ".csv");
  std::ofstream file(path);
  file << "number\n";
  for (int64_t i = begin; i < end; ++i) file << i << "\n";
  return path;
}

TEST(DatasetRangesTest, SeveralFilesAreARangeEach) {
  const Dataset dataset = Dataset::csv(
      std::vector{write_numbers_csv(0, 5), write_numbers_csv(5, 7), write_numbers_csv(7, 12)},
      {.columns = {{"number", at::kLong}}});
  const DatasetRanges ranges = ranges_of(dataset.interleave(2).batch(2));
  EXPECT_EQ(ranges.count(), 3);
  EXPECT_THAT(numbers_in(ranges, 1), ElementsAre(5, 6));
  expect_all(ranges, 12);
}

TEST(DatasetRangesTest, AFileOfUnknownLengthIsCutIntoPartsThatGrow) {
  const Dataset dataset =
      Dataset::csv(write_numbers_csv(0, 10'000), {.columns = {{"number", at::kLong}}});
  const DatasetRanges ranges = ranges_of(dataset.batch(10));
  EXPECT_EQ(ranges.count(), kUnknownCount);
  std::vector<int64_t> all;
  for (int64_t i = 0; i < 3; ++i) {
    const std::vector<int64_t> numbers = numbers_in(ranges, i);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  ASSERT_EQ(all.size(), 10'000u);
  for (int64_t i = 0; i < 10'000; ++i) ASSERT_EQ(all[i], i);
  EXPECT_EQ(numbers_in(ranges, 3).size(), 0u);
  EXPECT_EQ(ranges.most_elements(15), ranges.most_elements(0));
  EXPECT_EQ(ranges.most_elements(16), 2 * ranges.most_elements(0));
  EXPECT_GT(ranges.most_elements(kMostRanges - 1), 0u);
}

TEST(DatasetRangesTest, RejectsStepsThatWouldSeeOneRangeOnly) {
  const Dataset range = Dataset::range(9);
  for (const Dataset& dataset :
       {range.repeat(), range.take(3), range.skip(3), range.shard(2, 0), range.concatenate(range),
        range.cache(), Dataset::zip({range, range})}) {
    const auto ranges = try_ranges_of(dataset.batch(2));
    ASSERT_FALSE(ranges.ok()) << dataset.describe();
    EXPECT_EQ(error_code(ranges.status()), ErrorCode::kInvalidArgument);
    EXPECT_THAT(trireme::describe(ranges.status()),
                HasSubstr("cannot run inside of one; remove it"));
  }
}

}  // namespace
}  // namespace trireme::internal
