// Tests the steps of datasets through the public API, and that an iterator continues exactly where
// another one was, in the middle of any of them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset_data.h"
#include "trireme/data/generator.h"
#include "trireme/data/iterator.h"
#include "trireme/data/open_stream.h"
#include "trireme/data/used_numbers.h"
#include "trireme/exec/random.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using at::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using StepElements = std::vector<std::vector<Tensor>>;

constexpr size_t kMostDrawn = 40;

std::atomic<int64_t> generated = 0;  // elements that `growing` has made

// Gives 12 elements of 0, 1, 2, 3, 0, 1, … values, which depend on the seed.
Dataset growing() {
  static const NamedGenerator made =
      generator("growing", {{"x", at::kLong, {-1}}}, [](uint64_t seed) {
        return [i = int64_t{0}, seed]() mutable -> std::optional<std::vector<Tensor>> {
          if (i == 12) return std::nullopt;
          ++generated;
          const int64_t number = i++;
          return {{at::arange(number % 4) + static_cast<int64_t>(seed % 100) + number}};
        };
      });
  return made.dataset();
}

// Gives the first `least` to `least` + 2 numbers from the seed on, as the seed decides.
Dataset varying(int64_t least) {
  static std::map<int64_t, NamedGenerator> all;
  const auto found = all.find(least);
  if (found != all.end()) return found->second.dataset();
  NamedGenerator made =
      generator("varying " + std::to_string(least), {{"x", at::kLong}}, [least](uint64_t seed) {
        return [left = least + static_cast<int64_t>(seed % 3),
                number = static_cast<int64_t>(
                    seed % 100)]() mutable -> std::optional<std::vector<Tensor>> {
          if (left-- == 0) return std::nullopt;
          return {{at::scalar_tensor(number++, at::kLong)}};
        };
      });
  return all.emplace(least, std::move(made)).first->second.dataset();
}

// Gives some of the numbers 0 to 2, or none, as random numbers decide.
Dataset rarely(double probability) {
  return Dataset::range(3).filter(
      [probability](const Tensor& x) { return at::rand_like(x.to(at::kDouble)) < probability; });
}

// Gives the numbers 0 to 11 and a random number for each, which depends on the seed.
Dataset random_pairs() {
  return Dataset::range(12).map(
      [](const Tensor& x) { return std::make_pair(x, at::rand_like(x.to(at::kDouble))); });
}

Dataset odd(const Dataset& dataset) {
  return dataset.filter([](const Tensor& x) { return x.remainder(2) == 1; });
}

Dataset with_noise(const Dataset& dataset, int threads) {
  return dataset.map([](const Tensor& x) { return x + at::rand_like(x.to(at::kDouble)); },
                     {.threads = threads});
}

StepElements drawn_from(Iterator& iterator) {
  StepElements elements;
  while (elements.size() < kMostDrawn) {
    auto element = iterator.next_optional();
    if (!element) break;
    elements.push_back(*std::move(element));
  }
  return elements;
}

StepElements drawn_from(const Dataset& dataset, uint64_t seed = 5) {
  Iterator iterator = dataset.iterator({.seed = seed});
  return drawn_from(iterator);
}

bool are_same(const StepElements& a, const StepElements& b) {
  const auto same_tensor = [](const Tensor& x, const Tensor& y) { return x.equal(y); };
  return std::ranges::equal(
      a, b, [&](const auto& x, const auto& y) { return std::ranges::equal(x, y, same_tensor); });
}

// Returns the values of the first tensors.
std::vector<int64_t> longs_of(const Dataset& dataset) {
  std::vector<int64_t> values;
  for (const auto& element : drawn_from(dataset)) {
    const Tensor flat = element[0].flatten().contiguous();
    const auto* begin = flat.const_data_ptr<int64_t>();
    values.insert(values.end(), begin, begin + flat.numel());
  }
  return values;
}

struct StepCase {
  std::string name;
  std::function<Dataset()> dataset;
};

const std::vector<StepCase>& step_cases() {
  static const auto& all = *new std::vector<StepCase>{
      {"filter", [] { return odd(Dataset::range(20)); }},
      {"filter_nothing", [] { return odd(Dataset::range(0, 20, 2)); }},
      {"filter_shuffle", [] { return odd(Dataset::range(30)).shuffle(4).repeat(3); }},
      {"shuffle_filter", [] { return odd(Dataset::range(30).shuffle(9)).repeat(); }},
      {"filter_batch", [] { return odd(Dataset::range(20).shuffle(20).repeat(3)).batch(4); }},
      {"filter_random",
       [] {
         return random_pairs()
             .filter([](const Tensor&, const Tensor& r) { return r > 0.5; })
             .repeat(5)
             .batch(2, {.drop_remainder = true});
       }},
      {"zip",
       [] {
         return Dataset::zip({Dataset::range(9), Dataset::range(100, 120)});
       }},
      {"zip_shuffles",
       [] {
         return Dataset::zip({Dataset::range(9).shuffle(4), random_pairs().shuffle(3)})
             .repeat(3)
             .batch(4);
       }},
      {"zip_filter",
       [] {
         return Dataset::zip({odd(Dataset::range(21)), Dataset::range(30)}).repeat(2);
       }},
      {"concatenate",
       [] { return Dataset::range(5).concatenate(Dataset::range(50, 57)).repeat(2); }},
      {"concatenate_shuffle",
       [] { return Dataset::range(5).shuffle(5).concatenate(odd(Dataset::range(9)).shuffle(2)); }},
      {"shard", [] { return Dataset::range(23).shard(4, 2); }},
      {"shuffle_shard", [] { return Dataset::range(23).shuffle(6).shard(3, 1).repeat(3); }},
      {"map_shard", [] { return with_noise(Dataset::range(23), 1).shard(5, 0).repeat(2); }},
      {"cache", [] { return random_pairs().cache().repeat(3); }},
      {"cache_shuffle", [] { return random_pairs().cache().shuffle(5).repeat(3); }},
      {"shuffle_cache", [] { return Dataset::range(9).shuffle(9).cache().repeat(3); }},
      {"repeat_cache", [] { return Dataset::range(4).shuffle(4).repeat(2).cache().repeat(3); }},
      {"cache_shard", [] { return random_pairs().cache().shard(3, 1).repeat(4); }},
      {"cache_take", [] { return random_pairs().cache().take(5).repeat(4); }},
      {"filter_cache", [] { return odd(Dataset::range(11)).cache().repeat(4); }},
      {"cache_twice", [] { return random_pairs().cache().repeat(2).shuffle(4).cache().repeat(2); }},
      {"prefetch", [] { return random_pairs().prefetch(3).repeat(2); }},
      {"shuffle_prefetch", [] { return Dataset::range(9).shuffle(4).repeat().prefetch(2); }},
      {"prefetch_shuffle", [] { return random_pairs().prefetch(2).shuffle(3).prefetch(2); }},
      {"prefetch_shard", [] { return random_pairs().repeat(3).prefetch(4).shard(3, 1); }},
      {"cache_prefetch", [] { return random_pairs().cache().prefetch(4).repeat(3); }},
      {"zip_prefetch_cache",
       [] {
         return Dataset::zip({random_pairs().cache().repeat(3).prefetch(3),
                              Dataset::range(5).shuffle(5).cache().repeat(9).prefetch(1)});
       }},
      {"map_threads", [] { return with_noise(Dataset::range(9), 3).repeat(3); }},
      {"map_threads_shuffle",
       [] { return with_noise(with_noise(Dataset::range(9), 2).shuffle(4), 2).repeat(); }},
      {"map_threads_shard", [] { return with_noise(Dataset::range(30), 2).shard(4, 3); }},
      {"map_threads_batch", [] { return with_noise(Dataset::range(30).batch(3), 4).repeat(3); }},
      {"padded_batch", [] { return growing().padded_batch(5); }},
      {"padded_batch_sizes",
       [] {
         return growing().repeat(4).padded_batch(
             3, {.sizes = {{4}}, .value = -1, .drop_remainder = true});
       }},
      {"generator", [] { return growing().repeat(3); }},
      {"generator_shuffle", [] { return growing().shuffle(5).repeat(2).prefetch(2); }},
      {"generator_cache", [] { return growing().cache().shard(2, 1).repeat(); }},
      {"all",
       [] {
         const Dataset left = odd(with_noise(Dataset::range(40), 2).map([](const Tensor& x) {
                                return x.to(at::kLong);
                              })).cache();
         const Dataset right =
             Dataset::range(7).shuffle(3).concatenate(Dataset::range(20, 60)).prefetch(2);
         return Dataset::zip({left, right}).shuffle(4).repeat(3).shard(2, 1).batch(3).prefetch(1);
       }},
  };
  return all;
}

// Returns datasets whose repetitions differ in length.
std::vector<StepCase> varying_cases() {
  return {
      {"generator_length", [] { return varying(1).repeat(); }},
      {"generator_length_shuffle", [] { return varying(2).shuffle(3).repeat(9).batch(2); }},
      {"generator_sometimes_empty", [] { return varying(0).repeat(); }},
      {"generator_filter", [] { return odd(varying(3)).repeat(); }},
      {"generator_length_cache", [] { return odd(varying(5)).cache().shuffle(2).repeat(); }},
      {"filter_often_empty", [] { return rarely(0.1).repeat(); }},
  };
}

class StepsTest : public testing::TestWithParam<StepCase> {};

TEST_P(StepsTest, AFreshIteratorContinuesAtEveryElement) {
  const Dataset dataset = GetParam().dataset();
  const StepElements all = drawn_from(dataset);
  Iterator walk = dataset.iterator({.seed = 5});
  for (size_t next = 0; next <= all.size(); ++next) {
    SCOPED_TRACE(next);
    const internal::IteratorPosition position = internal::Access<Iterator>::position(walk);
    EXPECT_EQ(position, (internal::IteratorPosition{5, next, {}}));
    Iterator iterator = dataset.iterator({.seed = 99});
    internal::Access<Iterator>::restore(iterator, position);
    StepElements rest = drawn_from(iterator);
    if (all.size() < kMostDrawn) {
      ASSERT_EQ(rest.size(), all.size() - next);
    } else {
      ASSERT_GE(rest.size(), all.size() - next);
      rest.resize(all.size() - next);
    }
    EXPECT_TRUE(are_same(rest, {all.begin() + static_cast<int64_t>(next), all.end()}));
    if (next < all.size()) walk.next_optional();
  }
}

TEST_P(StepsTest, SkipsAsManyElementsAsItIsAsked) {
  const Dataset dataset = GetParam().dataset();
  const StepElements all = drawn_from(dataset);
  const auto size = static_cast<int64_t>(all.size());
  for (int64_t first : {0, 1, 2, 5, 13}) {
    for (int64_t second : {1, 2, 4, 9}) {
      SCOPED_TRACE(first * 100 + second);
      if (first + 1 + second >= size && all.size() == kMostDrawn) continue;
      const auto stream = internal::open_stream(internal::Access<Dataset>::last(dataset), 5);
      EXPECT_EQ(value_or_throw(stream->skip(first)), std::min(first, size));
      const auto one = value_or_throw(stream->next());
      ASSERT_EQ(one.has_value(), first < size);
      if (!one) continue;
      EXPECT_TRUE(are_same({*one}, {all[first]}));
      EXPECT_EQ(value_or_throw(stream->skip(second)), std::min(second, size - first - 1));
      const auto other = value_or_throw(stream->next());
      ASSERT_EQ(other.has_value(), first + 1 + second < size);
      if (!other) continue;
      EXPECT_TRUE(are_same({*other}, {all[first + 1 + second]}));
    }
  }
}

TEST_P(StepsTest, ADefinitionThatWasSentGivesTheSameElements) {
  const Dataset dataset = GetParam().dataset();
  const Dataset received = value_or_throw(internal::dataset_from(internal::data_of(dataset)));
  EXPECT_EQ(received.describe(), dataset.describe());
  EXPECT_EQ(received.element_specs(), dataset.element_specs());
  EXPECT_TRUE(are_same(drawn_from(received), drawn_from(dataset)));
}

TEST_P(StepsTest, ElementsAreAsSpecified) {
  const Dataset dataset = GetParam().dataset();
  const auto fits = [](const TensorSpec& made, const TensorSpec& spec) {
    return made.dtype == spec.dtype &&
           std::ranges::equal(made.sizes, spec.sizes,
                              [](int64_t a, int64_t b) { return b == -1 || a == b; });
  };
  for (const auto& element : drawn_from(dataset)) {
    EXPECT_TRUE(std::ranges::any_of(dataset.element_specs(), [&](const ElementSpec& spec) {
      return std::ranges::equal(spec_of(element), spec, fits);
    })) << to_string(spec_of(element));
  }
}

INSTANTIATE_TEST_SUITE_P(Datasets, StepsTest, testing::ValuesIn(step_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(VaryingDatasets, StepsTest, testing::ValuesIn(varying_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Steps, GiveTheElementsThatTheirNamesSay) {
  EXPECT_THAT(longs_of(odd(Dataset::range(8))), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(longs_of(odd(Dataset::range(0, 8, 2))), IsEmpty());
  EXPECT_THAT(longs_of(Dataset::range(2).concatenate(Dataset::range(7, 9))),
              ElementsAre(0, 1, 7, 8));
  EXPECT_THAT(longs_of(Dataset::range(10).shard(4, 1)), ElementsAre(1, 5, 9));
  EXPECT_THAT(longs_of(Dataset::range(10).shard(4, 3)), ElementsAre(3, 7));
  EXPECT_THAT(longs_of(Dataset::range(3).cache().repeat(2)), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(longs_of(Dataset::range(5).prefetch(2)), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(
      longs_of(Dataset::range(5).map([](const Tensor& x) { return x * x; }, {.threads = 3})),
      ElementsAre(0, 1, 4, 9, 16));
}

TEST(Steps, AnEndlessRepeatGoesOnAfterAnEmptyRepetition) {
  EXPECT_EQ(drawn_from(varying(0).repeat()).size(), kMostDrawn);
  EXPECT_EQ(drawn_from(rarely(0.1).repeat()).size(), kMostDrawn);
  EXPECT_THAT(longs_of(odd(Dataset::range(0, 8, 2)).repeat()), IsEmpty());
  EXPECT_THAT(longs_of(rarely(1).take(0).repeat()), IsEmpty());
}

TEST(Steps, AnEndlessRepeatOfNothingIsAnError) {
  Iterator iterator = rarely(0).repeat().iterator();
  for (const uint64_t next : {0, 5}) {
    internal::Access<Iterator>::restore(iterator, {5, next, {}});
    const Error error = error_of([&] { iterator.next(); });
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.what(), HasSubstr("1000 repetitions in a row had no elements"));
  }
}

TEST(Steps, ZipEndsWithTheShortest) {
  const StepElements pairs =
      drawn_from(Dataset::zip({Dataset::range(4), odd(Dataset::range(6)), Dataset::range(9)}));
  ASSERT_EQ(pairs.size(), 3u);
  EXPECT_EQ(pairs[2].size(), 3u);
  EXPECT_EQ(pairs[2][1].item<int64_t>(), 5);
}

TEST(Steps, SizesAreKnownIfTheyCanBe) {
  const Dataset ten = Dataset::range(10);
  EXPECT_EQ(odd(ten).size(), Dataset::kUnknown);
  EXPECT_EQ(odd(ten).repeat().size(), Dataset::kForever);
  EXPECT_EQ(ten.shard(4, 1).size(), 3);
  EXPECT_EQ(ten.shard(4, 2).size(), 2);
  EXPECT_EQ(ten.concatenate(Dataset::range(5)).size(), 15);
  EXPECT_EQ(ten.concatenate(odd(ten)).size(), Dataset::kUnknown);
  EXPECT_EQ(Dataset::zip({ten, Dataset::range(3)}).size(), 3);
  EXPECT_EQ(Dataset::zip({ten, odd(ten)}).size(), Dataset::kUnknown);
  EXPECT_EQ(ten.cache().prefetch(2).size(), 10);
  EXPECT_EQ(ten.padded_batch(4).size(), 3);
}

TEST(Steps, ACacheIsFilledOnce) {
  const Dataset dataset = growing().cache().shard(2, 0).repeat(3);
  generated = 0;
  EXPECT_EQ(drawn_from(dataset).size(), 18u);
  EXPECT_EQ(generated, 12);
}

TEST(Steps, MapsOnSeveralThreadsGiveTheSameElements) {
  set_seed(3);
  const Dataset one = with_noise(Dataset::range(30), 1), four = with_noise(Dataset::range(30), 4);
  EXPECT_TRUE(are_same(drawn_from(one), drawn_from(four)));
  EXPECT_FALSE(are_same(drawn_from(four, 1), drawn_from(four, 2)));
}

// Returns which of the elements 0 to 5 can be drawn. The third one, 2, cannot be made.
std::vector<int64_t> good_elements(const std::function<Dataset(Dataset)>& steps) {
  const Tensor table = at::arange(100, 106);
  const Dataset dataset =
      steps(Dataset::from_tensors({at::tensor({0, 1, 20, 3, 4, 5}, at::kLong)})
                .map([table](const Tensor& i) { return table.index_select(0, i.view({1})); }));
  Iterator iterator = dataset.iterator();
  std::vector<int64_t> good;
  for (int i = 0; i < 6; ++i) {
    const Error error = error_of([&] { good.push_back(iterator.next().item<int64_t>()); });
    if (error.code() != ErrorCode::kOk) good.push_back(-1);
  }
  EXPECT_EQ(error_of([&] { iterator.next(); }).code(), ErrorCode::kEndOfData);
  return good;
}

TEST(Steps, AnElementThatCannotBeMadeIsLeftOut) {
  const auto expected = ElementsAre(100, 101, -1, 103, 104, 105);
  EXPECT_THAT(good_elements([](const Dataset& dataset) { return dataset; }), expected);
  EXPECT_THAT(good_elements([](const Dataset& dataset) { return dataset.cache(); }), expected);
  EXPECT_THAT(good_elements([](const Dataset& dataset) { return dataset.prefetch(3); }), expected);
  EXPECT_THAT(good_elements([](const Dataset& dataset) {
                return dataset.map([](const Tensor& x) { return x + 0; }, {.threads = 3});
              }),
              expected);
}

}  // namespace
}  // namespace trireme
