#include "trireme/data/rebatch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/dataset_data.h"
#include "trireme/data/sharding.h"
#include "trireme/data/used_numbers.h"
#include "trireme/testing/error_of.h"

namespace trireme::internal {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Sizes = std::vector<int64_t>;

std::vector<Element> all_parts(const Dataset& dataset) {
  std::vector<Element> parts;
  Iterator iterator = dataset.iterator();
  while (auto element = iterator.next_optional()) parts.push_back(*std::move(element));
  return parts;
}

Sizes sizes_of(const Dataset& dataset) {
  Sizes sizes;
  for (const Element& part : all_parts(dataset)) sizes.push_back(part[0].size(0));
  return sizes;
}

Sizes numbers_in(const Dataset& dataset) {
  Sizes numbers;
  for (const Element& part : all_parts(dataset)) {
    for (int64_t i = 0; i < part[0].numel(); ++i) numbers.push_back(part[0][i].item<int64_t>());
  }
  return numbers;
}

std::vector<std::string> specs_of(const Dataset& dataset) {
  std::vector<std::string> specs;
  for (const ElementSpec& spec : dataset.element_specs()) specs.push_back(to_string(spec));
  return specs;
}

// Adds a rebatch step with any sizes, as a peer might.
Dataset with_sizes(const Dataset& dataset, const Sizes& sizes) {
  DatasetData data = data_of(dataset);
  data.def.add_steps()->mutable_rebatch()->mutable_sizes()->Assign(sizes.begin(), sizes.end());
  return value_or_throw(dataset_from(std::move(data)));
}

TEST(RebatchSizes, DivideAGlobalBatchAmongReplicas) {
  EXPECT_THAT(rebatch_sizes(7, 2, 2, 0), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(rebatch_sizes(7, 2, 2, 1), ElementsAre(2, 1, 2, 2));
  EXPECT_THAT(rebatch_sizes(8, 2, 2, 1), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(rebatch_sizes(32, 1, 1, 0), ElementsAre(32));
  EXPECT_THAT(rebatch_sizes(2, 2, 2, 0), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(rebatch_sizes(2, 2, 2, 1), ElementsAre(0, 0, 1, 1));
  for (int worker : {-1, 2}) {
    EXPECT_THAT(error_text([&] { rebatch_sizes(7, 2, 2, worker); }), HasSubstr("cannot be divid"));
  }
  EXPECT_THAT(error_text([] { rebatch_sizes(0, 1, 1, 0); }), HasSubstr("a global batch of 0"));
  EXPECT_THAT(error_text([] { rebatch_sizes(7, 1, 0, 0); }), HasSubstr("0 replicas each"));
}

TEST(RebatchSizes, AddUpToTheGlobalBatchInEveryStep) {
  for (int64_t global : {1, 5, 7, 12, 64}) {
    for (int workers : {1, 2, 3, 7}) {
      for (int replicas : {1, 2, 3}) {
        Sizes sums(workers);
        for (int worker = 0; worker < workers; ++worker) {
          const Sizes sizes = rebatch_sizes(global, workers, replicas, worker);
          for (size_t i = 0; i < sizes.size(); ++i) sums[i / replicas] += sizes[i];
        }
        EXPECT_THAT(sums, Each(global)) << workers << " workers of " << replicas;
      }
    }
  }
}

TEST(Rebatch, SplitsGlobalBatches) {
  const Dataset dataset = Dataset::range(14).batch(7);
  EXPECT_THAT(sizes_of(rebatch(dataset, 2, 2, 0)), ElementsAre(2, 2, 2, 1, 2, 2, 2, 1));
  EXPECT_THAT(sizes_of(rebatch(dataset, 2, 2, 1)), ElementsAre(2, 1, 2, 2, 2, 1, 2, 2));
  EXPECT_EQ(rebatch(dataset, 2, 2, 1).size(), 8);
  EXPECT_EQ(numbers_in(rebatch(dataset, 2, 2, 1)), numbers_in(dataset));
  EXPECT_THAT(specs_of(rebatch(dataset, 2, 2, 0)), ElementsAre("(int64[2])", "(int64[1])"));
  EXPECT_THAT(specs_of(rebatch(dataset, 7, 1, 0)), ElementsAre("(int64[1])"));
  EXPECT_EQ(rebatch(dataset, 2, 2, 0).describe(), "range(0, 14).batch(7).rebatch(2, 2, 2, 1)");
  EXPECT_EQ(rebatch(dataset, 1, 1, 0).describe(), dataset.describe());
  EXPECT_EQ(rebatch(dataset.repeat(), 2, 2, 0).size(), Dataset::kForever);
}

TEST(Rebatch, PartsOfOneBatchAreViews) {
  const at::Tensor rows = at::arange(16).view({8, 2});
  const std::vector<Element> parts =
      all_parts(rebatch(Dataset::from_tensors({rows, rows.neg()}).batch(4), 1, 2, 0));
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_TRUE(parts[1][0].equal(rows.narrow(0, 2, 2)));
  EXPECT_TRUE(parts[1][1].equal(rows.narrow(0, 2, 2).neg()));
  EXPECT_TRUE(parts[1][0].is_alias_of(rows)) << "copied";
  EXPECT_TRUE(parts[1][0].is_contiguous());
}

TEST(Rebatch, ReplicasWithoutDataGetEmptyBatches) {
  const Dataset dataset = Dataset::range(4).batch(2);
  EXPECT_THAT(sizes_of(rebatch(dataset, 2, 2, 0)), ElementsAre(1, 1, 0, 0, 1, 1, 0, 0));
  EXPECT_THAT(sizes_of(rebatch(dataset, 2, 2, 1)), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_EQ(rebatch(dataset, 2, 2, 0).size(), 8);
  EXPECT_THAT(specs_of(rebatch(dataset, 2, 2, 0)), ElementsAre("(int64[1])", "(int64[0])"));
  EXPECT_THAT(sizes_of(rebatch(Dataset::range(0).batch(2), 2, 2, 1)), IsEmpty());
}

TEST(Rebatch, ContinuesOverSmallerBatches) {
  const Dataset once = Dataset::range(10).batch(4);  // of 4, 4 and 2
  EXPECT_THAT(sizes_of(rebatch(once, 1, 2, 0)), ElementsAre(2, 2, 2, 2, 2));
  EXPECT_THAT(sizes_of(rebatch(once, 1, 3, 0)), ElementsAre(2, 1, 1, 2, 1, 1, 2));
  EXPECT_THAT(specs_of(rebatch(once, 1, 3, 0)), ElementsAre("(int64[2])", "(int64[-1])"));
  EXPECT_EQ(rebatch(once, 1, 3, 0).size(), Dataset::kUnknown);
  const Dataset twice = Dataset::range(5).batch(4).repeat(2);  // of 4, 1, 4 and 1
  EXPECT_THAT(sizes_of(rebatch(twice, 1, 2, 0)), ElementsAre(2, 2, 2, 2, 2));
  EXPECT_THAT(numbers_in(rebatch(twice, 1, 2, 0)), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_THAT(sizes_of(rebatch(Dataset::range(3).batch(8), 1, 2, 0)), ElementsAre(3));
  EXPECT_THAT(sizes_of(with_sizes(Dataset::range(9).batch(2), {5, 0, 3, 0})),
              ElementsAre(5, 0, 3, 0, 1, 0));
  EXPECT_EQ(with_sizes(Dataset::range(8).batch(2), {5, 0, 3, 0}).size(), 4);
  EXPECT_EQ(with_sizes(Dataset::range(10).batch(2), {5, 0, 3, 0}).size(), 6);
}

TEST(DivideBatches, GivesAllPartsOfEachBatch) {
  const Dataset dataset = Dataset::range(11).batch(5);  // of 5, 5 and 1
  EXPECT_THAT(sizes_of(divide_batches(dataset, 2)), ElementsAre(3, 2, 3, 2, 1, 0));
  EXPECT_THAT(numbers_in(divide_batches(dataset, 3)),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_EQ(divide_batches(Dataset::range(10).batch(5), 2).size(), 4);
  EXPECT_THAT(specs_of(divide_batches(Dataset::range(10).batch(5), 2)),
              ElementsAre("(int64[3])", "(int64[2])"));
  for (int64_t used = 0; used <= 6; ++used) {
    Iterator iterator = divide_batches(dataset, 2).iterator();
    const IteratorPosition begin = Access<Iterator>::position(iterator);
    Access<Iterator>::restore(iterator, {.seed = begin.seed, .next = static_cast<uint64_t>(used)});
    int64_t left = 0;
    while (iterator.next_optional()) ++left;
    EXPECT_EQ(left, 6 - used);
  }
  EXPECT_THAT(error_of([] { divide_batches(Dataset::range(3), 2); }).message(),
              HasSubstr("are not batches; put batch() before it"));
  const Dataset rows = Dataset::from_tensors({at::rand({6, 4}), at::rand({6})});
  EXPECT_THAT(error_of([&] { divide_batches(rows, 2); }).message(),
              HasSubstr("are not batches; put batch() before it"));
}

// Every number of elements that an iterator can continue after gives the elements that are left.
TEST(Rebatch, ContinuesAnywhere) {
  const std::vector<Dataset> datasets = {
      rebatch(Dataset::range(21).batch(7), 2, 2, 1),
      rebatch(Dataset::range(9).batch(2), 2, 2, 1),
      rebatch(Dataset::range(10).shuffle(10).batch(4).repeat(3), 1, 3, 0),
  };
  for (const Dataset& dataset : datasets) {
    const std::vector<Element> parts = all_parts(dataset);
    for (size_t skipped = 0; skipped <= parts.size(); ++skipped) {
      const std::vector<Element> left = all_parts(dataset.skip(skipped));
      ASSERT_EQ(left.size(), parts.size() - skipped) << dataset.describe();
      for (size_t i = 0; i < left.size(); ++i) {
        EXPECT_TRUE(left[i][0].equal(parts[skipped + i][0])) << dataset.describe() << skipped;
      }
    }
  }
}

TEST(Rebatch, WarnsOnceOfASizeThatDoesNotDivide) {
  const auto log_of = [](const Dataset& dataset, int worker) {
    testing::internal::CaptureStderr();
    rebatch(dataset, 3, 1, worker);
    return testing::internal::GetCapturedStderr();
  };
  const Dataset dataset = Dataset::range(100, 110).batch(5);
  EXPECT_THAT(log_of(dataset, 1),
              AllOf(HasSubstr("range(100, 110).batch(5)"), HasSubstr("batches of 5"),
                    HasSubstr("batches of 2, 2, 1;")));
  EXPECT_EQ(log_of(dataset, 1), "");
  EXPECT_EQ(log_of(dataset, 2), "");
  EXPECT_EQ(log_of(Dataset::range(6).batch(6), 0), "");
}

TEST(Rebatch, RejectsElementsThatAreNotBatches) {
  EXPECT_THAT(error_text([] { rebatch(Dataset::range(9), 1, 2, 0); }),
              AllOf(HasSubstr("dataset range(0, 9)"), HasSubstr("add batch()")));
  const auto sum = [](const at::Tensor& x) { return x.sum(); };
  EXPECT_THAT(error_text([&] { rebatch(Dataset::range(9).batch(3).map(sum), 1, 3, 0); }),
              AllOf(HasSubstr("'rebatch'"), HasSubstr("int64[]"), HasSubstr("not batches")));
}

TEST(Rebatch, RejectsDefinitionsOfPeersThatAreNotValid) {
  const Dataset dataset = Dataset::range(9).batch(3);
  const auto error = [&](const Sizes& sizes) {
    return error_text([&] { with_sizes(dataset, sizes); });
  };
  EXPECT_THAT(error({}), HasSubstr("0 parts"));
  EXPECT_THAT(error({0, 0}), HasSubstr("2 parts with 0 rows"));
  EXPECT_THAT(error({2, -1}), HasSubstr("size -1"));
  EXPECT_THAT(error({INT64_MAX, 1}), HasSubstr("it has a part of size"));
  EXPECT_THAT(error({INT64_MAX}), HasSubstr("bytes at once"));
  EXPECT_THAT(error(Sizes(70000, 1)), HasSubstr("at most 65536 parts"));
}

TEST(Rebatch, TheWorkersOfAStepDrawAGlobalBatch) {
  const Dataset dataset = Dataset::range(56).shuffle(9).batch(7);
  Sizes seen, steps(8);
  for (int worker = 0; worker < 2; ++worker) {
    const Dataset part = shard_dataset(rebatch(dataset, 2, 2, worker), Shard::kAuto,
                                       {.num_input_pipelines = 2, .input_pipeline_id = worker});
    const Sizes sizes = sizes_of(part);
    for (size_t i = 0; i < sizes.size(); ++i) steps[i / 2] += sizes[i];
    for (int64_t number : numbers_in(part)) seen.push_back(number);
  }
  EXPECT_THAT(steps, Each(7));
  EXPECT_THAT(seen, testing::UnorderedElementsAreArray(numbers_in(Dataset::range(56).batch(56))));
}

}  // namespace
}  // namespace trireme::internal
