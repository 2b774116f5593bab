// Tests that an iterator continues exactly where another one was.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/status.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset_source.h"
#include "trireme/data/iterator.h"
#include "trireme/data/open_stream.h"
#include "trireme/data/used_numbers.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using at::Tensor;
using internal::IteratorPosition;
using testing::ElementsAre;
using testing::HasSubstr;
using Positions = internal::Access<Iterator>;

constexpr uint64_t kSeed = 11;
constexpr int kMostElements = 40;

Dataset noisy(const Dataset& dataset) {
  return dataset.map([](const Tensor& x) { return x + at::rand_like(x.to(at::kDouble)); });
}

Dataset rows() {
  return Dataset::from_tensors({at::arange(14).view({7, 2}), at::arange(7)});
}

struct Case {
  std::string name;
  std::function<Dataset()> dataset;
};

const std::vector<Case>& cases() {
  static const auto& all = *new std::vector<Case>{
      {"range", [] { return Dataset::range(9); }},
      {"range_down", [] { return Dataset::range(9, -9, -3); }},
      {"tensors", [] { return rows(); }},
      {"empty", [] { return Dataset::range(0).repeat(); }},
      {"shuffle_small", [] { return Dataset::range(20).shuffle(4); }},
      {"shuffle_large", [] { return Dataset::range(20).shuffle(100); }},
      {"shuffle_twice", [] { return Dataset::range(20).shuffle(5).shuffle(6); }},
      {"repeat", [] { return Dataset::range(4).repeat(3); }},
      {"endless", [] { return Dataset::range(4).repeat(); }},
      {"nested_repeat", [] { return Dataset::range(3).shuffle(3).repeat(2).take(5).repeat(4); }},
      {"shuffle_repeat", [] { return Dataset::range(7).shuffle(7).repeat(); }},
      {"repeat_shuffle", [] { return Dataset::range(7).repeat().shuffle(5); }},
      {"repeat_shuffle_repeat", [] { return Dataset::range(3).repeat(2).shuffle(4).repeat(3); }},
      {"batch", [] { return Dataset::range(11).batch(4); }},
      {"batch_whole", [] { return Dataset::range(11).batch(4, {.drop_remainder = true}); }},
      {"batch_repeat", [] { return rows().shuffle(3).batch(3).repeat(); }},
      {"repeat_batch", [] { return rows().shuffle(7).repeat().batch(3); }},
      {"batch_twice",
       [] {
         return Dataset::range(13)
             .shuffle(3)
             .repeat(3)
             .batch(2, {.drop_remainder = true})
             .take(17)
             .batch(2);
       }},
      {"batch_shuffle", [] { return Dataset::range(23).batch(2).shuffle(4).repeat(2); }},
      {"map", [] { return noisy(Dataset::range(9)); }},
      {"map_repeat", [] { return noisy(Dataset::range(9)).repeat(3); }},
      {"repeat_map", [] { return noisy(Dataset::range(4).repeat(3)); }},
      {"map_shuffle", [] { return noisy(Dataset::range(15)).shuffle(4); }},
      {"map_shuffle_twice", [] { return noisy(Dataset::range(15)).shuffle(4).shuffle(5); }},
      {"map_shuffle_all", [] { return noisy(Dataset::range(15)).shuffle(50).repeat(2); }},
      {"map_shuffle_map", [] { return noisy(noisy(Dataset::range(15)).shuffle(4)).repeat(2); }},
      {"map_repeat_shuffle", [] { return noisy(Dataset::range(5)).repeat().shuffle(4); }},
      {"batch_map", [] { return noisy(Dataset::range(11).shuffle(4).batch(3)).repeat(3); }},
      {"map_batch", [] { return noisy(Dataset::range(11)).batch(3).repeat(2); }},
      {"take", [] { return Dataset::range(9).shuffle(9).take(5).repeat(3); }},
      {"skip", [] { return Dataset::range(9).shuffle(9).skip(5).repeat(3); }},
      {"skip_take", [] { return noisy(Dataset::range(20)).skip(3).take(9).shuffle(3); }},
      {"all",
       [] {
         return noisy(rows()
                          .map([](const Tensor& x, const Tensor& y) { return x + y; })
                          .shuffle(4)
                          .skip(1)
                          .repeat()
                          .batch(2))
             .shuffle(3)
             .take(30);
       }},
  };
  return all;
}

using Elements = std::vector<std::vector<Tensor>>;

Elements drain(Iterator& iterator) {
  Elements elements;
  while (elements.size() < kMostElements) {
    auto element = iterator.next_optional();
    if (!element) break;
    elements.push_back(*std::move(element));
  }
  return elements;
}

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << a[i] << b[i];
}

Iterator at(const Dataset& dataset, const IteratorPosition& position) {
  Iterator iterator = dataset.iterator({.seed = 99});
  Positions::restore(iterator, position);
  return iterator;
}

class IteratorPositionTest : public testing::TestWithParam<Case> {};

TEST_P(IteratorPositionTest, ContinuesAtEveryElement) {
  const Dataset dataset = GetParam().dataset();
  Iterator whole = dataset.iterator({.seed = kSeed});
  const Elements all = drain(whole);
  Iterator walk = dataset.iterator({.seed = kSeed});
  for (size_t next = 0; next <= all.size(); ++next) {
    SCOPED_TRACE(next);
    const IteratorPosition position = Positions::position(walk);
    EXPECT_EQ(position, (IteratorPosition{kSeed, next, {}}));
    Iterator iterator = at(dataset, position);
    const Elements rest = drain(iterator);
    ASSERT_EQ(rest.size(), all.size() == kMostElements ? all.size() : all.size() - next);
    for (size_t i = next; i < all.size(); ++i) expect_equal(rest[i - next], all[i]);
    if (next < all.size()) walk.next_optional();
  }
}

TEST_P(IteratorPositionTest, DrawsReturnedElementsFirst) {
  const Dataset dataset = GetParam().dataset();
  Iterator whole = dataset.iterator({.seed = kSeed});
  const Elements all = drain(whole);
  if (all.size() < 5) return;
  const auto source = Positions::source(dataset.iterator({.seed = kSeed}));
  Iterator walk = Positions::make(source);
  std::vector<internal::NumberedElement> drawn;
  for (size_t i = 0; i < 5; ++i) drawn.push_back(source->draw());
  source->put_back(std::move(drawn[3]));
  source->put_back(std::move(drawn[1]));
  const IteratorPosition position = Positions::position(walk);
  EXPECT_EQ(position, (IteratorPosition{kSeed, 5, {1, 3}}));
  Iterator iterator = at(dataset, position);
  for (Iterator* each : {&walk, &iterator}) {
    const Elements rest = drain(*each);
    ASSERT_GE(rest.size(), 2u);
    expect_equal(rest[0], all[1]);
    expect_equal(rest[1], all[3]);
    for (size_t i = 5; i < all.size(); ++i) expect_equal(rest[i - 3], all[i]);
  }
}

TEST_P(IteratorPositionTest, SkipsAnyNumberOfElements) {
  const Dataset dataset = GetParam().dataset();
  const auto step = internal::Access<Dataset>::last(dataset);
  const auto open = [&] { return internal::open_stream(step, kSeed); };
  Iterator whole = dataset.iterator({.seed = kSeed});
  const Elements all = drain(whole);
  for (int64_t first = 0; first <= 4; ++first) {
    for (int64_t second = 0; second <= 9; ++second) {
      SCOPED_TRACE(first * 100 + second);
      const auto stream = open();
      // Skips, draws one, and skips again.
      const auto left = [&](int64_t from) {
        return dataset.size() == Dataset::kForever ? second
                                                   : std::min(second, dataset.size() - from);
      };
      const int64_t skipped = value_or_throw(stream->skip(first));
      ASSERT_EQ(skipped, std::min(first, dataset.size()));
      const auto one = value_or_throw(stream->next());
      ASSERT_EQ(one.has_value(), first < dataset.size());
      if (!one) continue;
      expect_equal(*one, all[first]);
      ASSERT_EQ(value_or_throw(stream->skip(second)), left(first + 1));
      const auto other = value_or_throw(stream->next());
      ASSERT_EQ(other.has_value(), first + 1 + second < dataset.size());
      if (other) expect_equal(*other, all[first + 1 + second]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Datasets, IteratorPositionTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(IteratorPosition, FarPositionsAreReachedByArithmetic) {
  const Dataset dataset =
      noisy(Dataset::range(1000).shuffle(1000).repeat().batch(16)).take(Dataset::kForever);
  const uint64_t next = uint64_t{1} << 50;
  const Time began = Clock::real().now();
  Iterator iterator = at(dataset, {kSeed, next, {next - 5}});
  iterator.next();
  const Tensor element = iterator.next();
  EXPECT_LT(Clock::real().now() - began, std::chrono::seconds(1));
  EXPECT_TRUE(at(dataset, {kSeed, next, {}}).next().equal(element));
  EXPECT_EQ(Positions::position(iterator), (IteratorPosition{kSeed, next + 1, {}}));
}

TEST(IteratorPosition, PastTheEndThereAreNoElements) {
  Iterator iterator = at(Dataset::range(5).batch(2), {kSeed, 100, {}});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { iterator.next(); }).code(), ErrorCode::kEndOfData);
  }
  EXPECT_EQ(Positions::position(iterator).next, 100u);
}

TEST(IteratorPosition, RejectsAPositionThatTakesTooLong) {
  Iterator iterator = Dataset::range(5).repeat().shuffle(3).iterator();
  const Error error = error_of([&] {
    Positions::restore(iterator, {kSeed, uint64_t{1} << 50, {}});
  });
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.what(), HasSubstr("put shuffle() before repeat()"));
  EXPECT_EQ(error_of([&] {
              Positions::restore(iterator, {kSeed, 3, {4}});
            }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(IteratorPosition, AnElementThatCannotBeMadeIsLeftOut) {
  // Row 2 holds an index that is out of range.
  const Tensor table = at::arange(4);
  const Dataset dataset =
      Dataset::from_tensors({at::arange(5).mul(2).remainder(7)}).map([table](const Tensor& i) {
        return table.index_select(0, i.view({1}));
      });
  Iterator iterator = dataset.iterator();
  std::vector<int64_t> drawn;
  int errors = 0;
  for (int i = 0; i < 5; ++i) {
    const Error error = error_of([&] { drawn.push_back(iterator.next().item<int64_t>()); });
    errors += error.code() != ErrorCode::kOk;
  }
  EXPECT_THAT(drawn, ElementsAre(0, 2, 1));  // Rows 0, 1 and 4 of 0 2 4 6 1.
  EXPECT_EQ(errors, 2);
  EXPECT_EQ(Positions::position(iterator).next, 5u);
}

TEST(IteratorPosition, OnlyIteratorsOverDatasetsHaveOne) {
  const Iterator there = Positions::placeholder({{at::arange(3)}}, 42);
  EXPECT_THAT(error_of([&] { Positions::position(there); }).what(), HasSubstr("iterator 42"));
  EXPECT_EQ(Positions::describe(Dataset::range(3).iterator()), "range(0, 3)");
}

}  // namespace
}  // namespace trireme
