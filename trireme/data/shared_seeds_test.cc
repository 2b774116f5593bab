#include "trireme/data/shared_seeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "trireme/exec/random.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int64_t> numbers_in_order(const Dataset& dataset) {
  std::vector<int64_t> numbers;
  Iterator iterator = dataset.iterator();
  while (const auto element = iterator.next_optional()) {
    numbers.push_back((*element)[0].item<int64_t>());
  }
  return numbers;
}

TEST(SharedSeeds, AreThoseOfTheStepsBeforeAShard) {
  const Dataset numbers = Dataset::range(50);
  const Dataset shuffled = numbers.shuffle(50, {.seed = 7});
  EXPECT_THAT(seeds_before_shards(shuffled.shard(2, 1)), ElementsAre(7));
  EXPECT_THAT(seeds_before_shards(shuffled.shard(2, 1).shuffle(9, {.seed = 8})), ElementsAre(7));
  EXPECT_THAT(seeds_before_shards(numbers.concatenate(shuffled).shard(2, 1)), ElementsAre(7));
  EXPECT_THAT(seeds_before_shards(numbers.concatenate(shuffled.shard(2, 1))), ElementsAre(7));
  const auto twice = [](const at::Tensor& x) { return x.mul(2); };
  EXPECT_THAT(seeds_before_shards(numbers.map(twice).shard(2, 1)), ElementsAre(current_seed()));
  for (const Dataset& own : {shuffled, shuffled.shard(ShardHint()), shuffled.shard(1, 0),
                             numbers.shard(2, 1).shuffle(9), numbers.shard(2, 1).map(twice)}) {
    EXPECT_THAT(seeds_before_shards(own), IsEmpty()) << own.describe();
  }
}

TEST(SharedSeeds, WithThemPartsHaveEveryElementOnce) {
  const auto make = [](uint64_t seed, int worker) {
    return Dataset::zip({Dataset::range(50).shuffle(20, {.seed = seed}),
                         Dataset::range(50).shuffle(30, {.seed = seed + 1})})
        .shuffle(50, {.seed = seed + 2})
        .shard(2, worker);
  };
  const Dataset first = make(1, 0), other = make(11, 1);
  const Dataset second = with_seeds_before_shards(other, seeds_before_shards(first));
  EXPECT_EQ(numbers_in_order(second), numbers_in_order(make(1, 1)));
  EXPECT_NE(numbers_in_order(second), numbers_in_order(other));
  std::vector<int64_t> all = numbers_in_order(first);
  for (int64_t number : numbers_in_order(second)) all.push_back(number);
  std::ranges::sort(all);
  EXPECT_EQ(all, numbers_in_order(Dataset::range(50)));
}

}  // namespace
}  // namespace trireme::internal
