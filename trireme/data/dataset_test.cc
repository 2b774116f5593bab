#include "trireme/data/dataset.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/exec/random.h"
#include "trireme/function/variable.h"

namespace trireme {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAreArray;

using Numbers = std::vector<int64_t>;

Numbers numbers_of(const Tensor& tensor) {
  const Tensor row = tensor.contiguous().view(-1);
  return {row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()};
}

// Returns the first tensor of each element.
std::vector<Tensor> all(const Dataset& dataset, const IteratorOptions& options = {}) {
  std::vector<Tensor> elements;
  Iterator iterator = dataset.iterator(options);
  while (auto element = iterator.next_optional()) elements.push_back((*element)[0]);
  return elements;
}

// Returns the numbers in the first tensors of all elements, in order.
Numbers numbers(const Dataset& dataset, const IteratorOptions& options = {}) {
  Numbers result;
  for (const Tensor& tensor : all(dataset, options)) {
    for (int64_t number : numbers_of(tensor)) result.push_back(number);
  }
  return result;
}

Numbers up_to(int64_t end) {
  Numbers result(end);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

template <typename F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Dataset, RangeCountsUpAndDown) {
  EXPECT_THAT(numbers(Dataset::range(3)), ElementsAre(0, 1, 2));
  EXPECT_THAT(numbers(Dataset::range(1, 6)), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(numbers(Dataset::range(0, 7, 3)), ElementsAre(0, 3, 6));
  EXPECT_THAT(numbers(Dataset::range(5, 0, -2)), ElementsAre(5, 3, 1));
  EXPECT_THAT(numbers(Dataset::range(5, 1)), IsEmpty());
  const int64_t lowest = INT64_MIN, highest = INT64_MAX;
  EXPECT_THAT(numbers(Dataset::range(highest - 1, lowest, lowest)), ElementsAre(highest - 1, -2));
  EXPECT_EQ(Dataset::range(highest, lowest).size(), 0);
  EXPECT_THAT(message_of([] { Dataset::range(0, 5, 0); }), HasSubstr("step is 0"));
  EXPECT_THAT(message_of([&] { Dataset::range(lowest, highest); }), HasSubstr("counted"));
  EXPECT_EQ(to_string(Dataset::range(3).element_spec()), "(int64[])");
}

TEST(Dataset, FromTensorsGivesRows) {
  const Tensor x = at::arange(6).view({3, 2}), y = at::arange(3).mul(10);
  Iterator rows = Dataset::from_tensors({x, y}).iterator();
  for (int64_t i = 0; i < 3; ++i) {
    auto [a, b] = rows.next<2>();
    EXPECT_THAT(numbers_of(a), ElementsAre(2 * i, 2 * i + 1));
    EXPECT_EQ(b.item<int64_t>(), 10 * i);
  }
  EXPECT_FALSE(rows.next_optional());
  EXPECT_FALSE(rows.next_optional());
  EXPECT_THAT(message_of([&] {
                Dataset::from_tensors({x, at::ones({4})});
              }),
              AllOf(HasSubstr("dataset step 0 'from_tensors'"), HasSubstr("tensor 1 has 4 rows")));
  EXPECT_THAT(message_of([] { Dataset::from_tensors({}); }), HasSubstr("no tensor"));
  EXPECT_THAT(message_of([] { Dataset::from_tensors({at::ones({})}); }), HasSubstr("axis 0"));
}

TEST(Dataset, BatchesOfConsecutiveRowsAreViews) {
  const Tensor x = at::arange(10).view({5, 2});
  const auto batches = all(Dataset::from_tensors({x}).batch(2));
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_TRUE(batches[1].equal(x.narrow(0, 2, 2)));
  EXPECT_TRUE(batches[2].equal(x.narrow(0, 4, 1)));
  EXPECT_TRUE(batches[1].is_alias_of(x)) << "copied";
  EXPECT_EQ(all(Dataset::from_tensors({x}).batch(2, {.drop_remainder = true})).size(), 2u);
}

TEST(Dataset, BatchesOfShuffledRowsKeepTensorsTogether) {
  const Tensor x = at::randn({100, 3}), y = at::arange(100);
  Iterator batches = Dataset::from_tensors({x, y}).shuffle(100).batch(7).iterator();
  Numbers seen;
  while (auto batch = batches.next_optional()) {
    const auto& element = *batch;
    EXPECT_TRUE(element[0].equal(x.index_select(0, element[1])));
    for (int64_t row : numbers_of(element[1])) seen.push_back(row);
  }
  EXPECT_THAT(seen, UnorderedElementsAreArray(up_to(100)));
  EXPECT_NE(seen, up_to(100));
}

TEST(Dataset, BatchesOfBatchesStack) {
  const auto batches =
      all(Dataset::range(8).batch(2).map([](const Tensor& x) { return x.neg(); }).batch(2));
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_TRUE(batches[1].equal(at::arange(4, 8).view({2, 2}).neg()));
  EXPECT_THAT(message_of([] { Dataset::range(7).batch(2).batch(2); }),
              AllOf(HasSubstr("dataset step 2 'batch'"), HasSubstr("two shapes"),
                    HasSubstr("int64[2]"), HasSubstr("int64[1]")));
}

TEST(Dataset, ReportsSizesAndShapes) {
  const Dataset ten = Dataset::range(10);
  EXPECT_EQ(ten.batch(4).size(), 3);
  EXPECT_EQ(ten.batch(4, {.drop_remainder = true}).size(), 2);
  EXPECT_EQ(ten.repeat(3).size(), 30);
  EXPECT_EQ(ten.repeat(0).size(), 0);
  EXPECT_EQ(ten.repeat().size(), Dataset::kForever);
  EXPECT_EQ(ten.repeat().take(5).size(), 5);
  EXPECT_EQ(ten.take(50).size(), 10);
  EXPECT_EQ(ten.skip(4).size(), 6);
  EXPECT_EQ(ten.skip(40).size(), 0);
  EXPECT_EQ(ten.shuffle(3).size(), 10);
  const auto shapes = [](const Dataset& dataset) {
    std::vector<std::string> result;
    for (const ElementSpec& spec : dataset.element_specs()) result.push_back(to_string(spec));
    return result;
  };
  EXPECT_THAT(shapes(ten.batch(4)), ElementsAre("(int64[4])", "(int64[2])"));
  EXPECT_THAT(shapes(ten.batch(5)), ElementsAre("(int64[5])"));
  EXPECT_THAT(shapes(ten.batch(40)), ElementsAre("(int64[10])"));
  EXPECT_THAT(shapes(ten.repeat().batch(4)), ElementsAre("(int64[4])"));
  EXPECT_THAT(shapes(ten.batch(4, {.drop_remainder = true})), ElementsAre("(int64[4])"));
  EXPECT_EQ(ten.shuffle(5).batch(4).repeat().describe(),
            "range(0, 10).shuffle(5).batch(4).repeat()");
}

TEST(Dataset, RepeatsTakesAndSkips) {
  const Dataset three = Dataset::range(3);
  EXPECT_THAT(numbers(three.repeat(2)), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(numbers(three.repeat().take(4)), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(numbers(three.skip(1).repeat(2)), ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(numbers(three.repeat(2).skip(1).take(3)), ElementsAre(1, 2, 0));
  EXPECT_THAT(numbers(three.repeat(0)), IsEmpty());
  EXPECT_THAT(numbers(three.take(0).repeat()), IsEmpty()) << "an empty dataset, repeated for ever";
  EXPECT_THAT(numbers(three.skip(3).repeat()), IsEmpty());
  EXPECT_THAT(numbers(three.repeat(2).repeat(2)), ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2));
  const auto over_the_end = all(three.repeat(2).batch(4));
  EXPECT_THAT(numbers_of(over_the_end[0]), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(numbers_of(over_the_end[1]), ElementsAre(1, 2));
  // After a batch, elements pass through these steps instead of row numbers.
  const Dataset batches = three.batch(2);
  EXPECT_THAT(numbers(batches.repeat(2)), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(numbers(batches.skip(1).repeat().take(2)), ElementsAre(2, 2));
  EXPECT_THAT(message_of([&] { three.repeat(-1); }), HasSubstr("dataset step 1 'repeat'"));
}

TEST(Shuffle, GivesEachElementOnce) {
  for (int64_t buffer : {1, 2, 10, 50, 100}) {
    EXPECT_THAT(numbers(Dataset::range(50).shuffle(buffer)), UnorderedElementsAreArray(up_to(50)));
  }
  EXPECT_EQ(numbers(Dataset::range(50).shuffle(1)), up_to(50));
}

TEST(Shuffle, LooksAheadNoFurtherThanItsBuffer) {
  const Numbers order = numbers(Dataset::range(200).shuffle(10));
  for (size_t i = 0; i < order.size(); ++i) EXPECT_LT(order[i], static_cast<int64_t>(i) + 10);
}

TEST(Shuffle, AllOrdersAreEquallyLikely) {
  std::map<Numbers, int> seen;
  constexpr int kRounds = 6000;
  for (uint64_t seed = 0; seed < kRounds; ++seed) {
    ++seen[numbers(Dataset::range(3).shuffle(3, {.seed = seed}))];
  }
  ASSERT_EQ(seen.size(), 6u);
  // Five standard deviations of a binomial around 1000.
  for (const auto& [order, times] : seen) EXPECT_NEAR(times, kRounds / 6, 145);
}

TEST(Shuffle, TheSeedsDetermineTheOrder) {
  const auto order = [](uint64_t seed, IteratorOptions options = {}) {
    return numbers(Dataset::range(50).shuffle(50, {.seed = seed}), options);
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
  EXPECT_NE(order(1), order(1, {.seed = 1}));
  EXPECT_EQ(order(1, {.seed = 1}), order(1, {.seed = 1}));
  EXPECT_NE(numbers(Dataset::range(50).shuffle(50).shuffle(50)), order(current_seed()));
}

TEST(Shuffle, ShufflesEachRepetitionDifferently) {
  const auto check = [](const Dataset& dataset) {
    const Numbers twice = numbers(dataset.repeat(2));
    const Numbers first(twice.begin(), twice.begin() + 50), second(twice.begin() + 50, twice.end());
    EXPECT_THAT(first, UnorderedElementsAreArray(up_to(50)));
    EXPECT_THAT(second, UnorderedElementsAreArray(up_to(50)));
    EXPECT_NE(first, second);
    EXPECT_EQ(numbers(dataset.repeat(2)), twice);
  };
  check(Dataset::range(50).shuffle(50));
  check(Dataset::range(50).batch(1).shuffle(50));
  const Numbers nested = numbers(Dataset::range(50).shuffle(50).repeat(2).repeat(2));
  EXPECT_FALSE(std::equal(nested.begin(), nested.begin() + 100, nested.begin() + 100));
}

TEST(Map, ReplacesElementsWithResults) {
  const Tensor weight = at::tensor({2, 3}, at::kLong);
  const Dataset dataset = Dataset::from_tensors({at::arange(6).view({3, 2}), at::arange(3)});
  const Dataset mapped = dataset.map([&](const Tensor& x, const Tensor& y) {
    return std::make_pair(x.mul(weight).sum(), y.to(at::kFloat));
  });
  EXPECT_EQ(to_string(mapped.element_spec()), "(int64[], float32[])");
  EXPECT_THAT(numbers(mapped), ElementsAre(3, 13, 23));
  EXPECT_EQ(mapped.describe(), "from_tensors(int64[3, 2], int64[3]).map(map)");
}

TEST(Map, IsCapturedForTheSmallerLastBatchToo) {
  const auto twice = function("twice", [](const Tensor& x) { return x.mul(2); });
  const Dataset mapped = Dataset::range(5).batch(2).map(twice).map(twice);
  EXPECT_EQ(mapped.element_specs().size(), 2u);
  EXPECT_THAT(numbers(mapped), ElementsAre(0, 4, 8, 12, 16));
  const Dataset sums = Dataset::range(5).batch(2).map([](const Tensor& x) { return x.sum(); });
  EXPECT_EQ(sums.element_specs().size(), 1u);
  EXPECT_THAT(numbers(sums.batch(3)), ElementsAre(1, 5, 4));
}

TEST(Map, DrawsNewRandomNumbersForEachElementFromTheSeed) {
  const Dataset noise = Dataset::from_tensors({at::zeros({4, 3})}).map([](const Tensor& x) {
    return at::rand_like(x);
  });
  const auto values = all(noise.repeat(2)), again = all(noise.repeat(2));
  ASSERT_EQ(values.size(), 8u);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(values[i].equal(again[i]));
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(values[i].equal(values[j])) << i << " " << j;
  }
}

TEST(Map, RejectsFunctionsThatDoNotFitTheElements) {
  const Dataset pairs = Dataset::from_tensors({at::arange(3), at::arange(3)});
  EXPECT_THAT(message_of([&] { pairs.map([](const Tensor& x) { return x; }); }),
              AllOf(HasSubstr("takes 1 tensors"), HasSubstr("(int64[], int64[])")));
  const Variable v("offset", at::ones({}));
  EXPECT_THAT(message_of([&] {
                Dataset::range(3).map([&](const Tensor& x) { return x + v.read().detach(); });
              }),
              AllOf(HasSubstr("dataset step 1 'map'"), HasSubstr("variable 'offset'")));
}

TEST(Dataset, StepsLeaveTheirInputUnchanged) {
  const Dataset base = Dataset::range(4);
  const Dataset a = base.batch(2), b = base.repeat(2);
  EXPECT_EQ(numbers(base).size(), 4u);
  EXPECT_EQ(all(a).size(), 2u);
  EXPECT_EQ(all(b).size(), 8u);
}

}  // namespace
}  // namespace trireme
