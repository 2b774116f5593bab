#include "trireme/data/sharding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/data/dataset_creator.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The numbers of one example, one for each tensor.
using Example = std::vector<int64_t>;
using Examples = std::vector<Example>;

// Returns the examples of a dataset, in order. Batches are taken apart.
Examples examples(const Dataset& dataset, uint64_t seed = 0) {
  Examples result;
  Iterator iterator = dataset.iterator({.seed = seed});
  while (const auto element = iterator.next_optional()) {
    std::vector<Tensor> columns;
    for (const Tensor& tensor : *element) columns.push_back(tensor.reshape(-1));
    for (int64_t row = 0; row < columns[0].numel(); ++row) {
      Example example;
      for (const Tensor& column : columns) example.push_back(column[row].item<int64_t>());
      result.push_back(std::move(example));
    }
  }
  return result;
}

Examples sorted(Examples all) {
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int64_t> first_numbers(const Dataset& dataset) {
  std::vector<int64_t> result;
  for (const Example& example : examples(dataset)) result.push_back(example[0]);
  return result;
}

InputContext worker(int id, int workers) {
  return {.num_input_pipelines = workers, .input_pipeline_id = id};
}

// Expects that the parts of the workers, whose iterators have different seeds, together are the
// whole dataset, with every example as often as there.
void expect_parts(const Dataset& dataset, Shard policy, int workers) {
  Examples all;
  for (int id = 0; id < workers; ++id) {
    const Dataset part = shard_dataset(dataset, policy, worker(id, workers));
    for (Example& example : examples(part, id)) all.push_back(std::move(example));
  }
  EXPECT_EQ(sorted(all), sorted(examples(dataset)))
      << dataset.describe() << " by policy " << static_cast<int>(policy) << " for " << workers;
}

std::string shard_error(const Dataset& dataset, Shard policy, const InputContext& context) {
  return error_text([&] { shard_dataset(dataset, policy, context); });
}

// Returns the lines that shard_dataset() logs.
std::string shard_log(const Dataset& dataset, const InputContext& context) {
  testing::internal::CaptureStderr();
  shard_dataset(dataset, Shard::kAuto, context);
  return testing::internal::GetCapturedStderr();
}

const auto kTwice = [](const Tensor& x) { return x.mul(2); };
const auto kWithNoise = [](const Tensor& x) {
  return x + at::rand_like(x.to(at::kDouble)).mul(0.9).to(at::kLong);
};
const auto kIsLucky = [](const Tensor& x) { return at::rand_like(x.to(at::kDouble)).gt(0.5); };
const auto kIsEven = [](const Tensor& x) { return x.remainder(2).eq(0); };

// Writes `count` files of numbers. File i has i + 3 of them, which continue those of file i - 1.
std::vector<std::string> write_files(const std::string& name, int count, int64_t first = 0) {
  std::vector<std::string> paths;
  int64_t next = first;
  for (int i = 0; i < count; ++i) {
    paths.push_back(testing::TempDir() + "/sharding_test_" + name + std::to_string(i) + ".csv");
    std::ofstream file(paths.back());
    for (int line = 0; line < i + 3; ++line) file << next++ << "\n";
  }
  return paths;
}

Dataset read_all(const std::vector<std::string>& paths) {
  return Dataset::csv(paths,
                      {.columns = {{.name = "number", .dtype = at::kLong}}, .has_header = false});
}

Dataset read_files(const std::string& name, int count, int64_t first = 0) {
  return read_all(write_files(name, count, first));
}

TEST(ShardStep, KeepsTheElementsOfOneWorker) {
  const Dataset ten = Dataset::range(10);
  EXPECT_THAT(first_numbers(ten.shard(3, 1)), ElementsAre(1, 4, 7));
  EXPECT_THAT(first_numbers(ten.shard(worker(2, 4))), ElementsAre(2, 6));
  EXPECT_THAT(first_numbers(ten.shard(20, 15)), IsEmpty());
  EXPECT_THAT(error_text([&] { ten.shard(2, 2); }), HasSubstr("dataset step 1 'shard'"));
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(error_text([&] { ten.shard(kHuge, kHuge - 1); }), HasSubstr("at most 2147483648"));
  EXPECT_EQ(examples(ten.shard(ShardHint())), examples(ten));
}

TEST(ShardDataset, OffLeavesTheDatasetAsItIs) {
  const Dataset dataset = Dataset::range(10).shuffle(10).batch(3);
  const Dataset part = shard_dataset(dataset, Shard::kOff, worker(1, 3));
  EXPECT_EQ(examples(part), examples(dataset));
}

TEST(ShardDataset, DataInMemoryIsDividedCompletely) {
  const Dataset fifty = Dataset::range(50), few = Dataset::range(100, 102);
  const Dataset rows = Dataset::from_tensors({at::arange(20), at::arange(20).mul(3)});
  const std::vector<Dataset> datasets = {
      fifty,
      few,
      rows,
      fifty.shuffle(20).batch(4),
      rows.shuffle(7).repeat(3).batch(4),
      fifty.map(kTwice).filter(kIsEven).shuffle(50).batch(3),
      fifty.batch(4).shuffle(3),
      fifty.padded_batch(4).prefetch(2),
      fifty.cache().repeat(2).shuffle(9),
      fifty.take(11).shuffle(4).batch(2),
      fifty.map(kWithNoise).take(11).shuffle(4).batch(2),
      fifty.skip(9).take(30).repeat(2).shuffle(5),
      fifty.repeat().take(70).batch(8),
      fifty.batch(4).take(5).shuffle(3),
      fifty.shard(2, 1).shuffle(6),
      fifty.concatenate(few).shuffle(10).batch(5),
      fifty.shuffle(5).concatenate(few.shuffle(2)).concatenate(fifty.skip(45)).batch(5),
      fifty.concatenate(few).take(51).shuffle(8),
      Dataset::zip({fifty, rows}).shuffle(6).batch(4),
      Dataset::zip({fifty.filter(kIsEven), few.concatenate(fifty)}).repeat(2).batch(4),
      Dataset::zip({fifty.take(9), fifty}).concatenate(rows.shuffle(20)).shuffle(6),
  };
  for (const Dataset& dataset : datasets) {
    for (int workers : {1, 2, 3, 7}) {
      expect_parts(dataset, Shard::kData, workers);
      expect_parts(dataset, Shard::kAuto, workers);
    }
  }
}

TEST(ShardDataset, FilesAreDividedCompletely) {
  const Dataset seven = read_files("seven", 7), eight = read_files("eight", 8, 1000);
  std::vector<std::string> reversed = write_files("reversed", 7, 500);
  std::reverse(reversed.begin(), reversed.end());
  const std::vector<Dataset> by_file = {
      seven,
      seven.shuffle(20).batch(4),
      seven.interleave(3, {.block_length = 2}).shuffle(5).batch(4),
      seven.map(kTwice).filter(kIsEven).repeat(2).batch(3),
      seven.shuffle(5).concatenate(eight.interleave(8)).cache().shuffle(9).prefetch(2),
  };
  const std::vector<Dataset> by_element = {
      seven.take(20).shuffle(8).batch(3),
      seven.interleave(2).skip(3).shuffle(8),
      seven.concatenate(Dataset::range(5)).shuffle(8),
      Dataset::zip({seven, eight}).shuffle(8).batch(3),
      Dataset::zip({seven, read_all(reversed)}).batch(3),
  };
  for (int workers : {1, 2, 3, 7}) {
    for (const Dataset& dataset : by_file) {
      expect_parts(dataset, Shard::kFile, workers);
      expect_parts(dataset, Shard::kData, workers);
      expect_parts(dataset, Shard::kAuto, workers);
    }
    for (const Dataset& dataset : by_element) {
      expect_parts(dataset, Shard::kData, workers);
      expect_parts(dataset, Shard::kAuto, workers);
    }
    expect_parts(Dataset::zip({seven, read_files("other", 7, 500)}).batch(3), Shard::kFile,
                 workers);
  }
}

TEST(ShardDataset, FilesThatAreJoinedStayTogether) {
  const std::vector<std::string> paths = write_files("joined", 5);
  const Dataset first = read_all({paths.begin(), paths.begin() + 3});
  const Dataset second = read_all({paths.begin() + 3, paths.end()});
  const Dataset five = read_all(paths), others = read_files("joined_others", 5, 500);
  const std::vector<Dataset> datasets = {
      first.concatenate(second),
      Dataset::zip({first.concatenate(second), others}),
      Dataset::zip({others, first.concatenate(second)}),
      Dataset::zip({Dataset::zip({five, others}), first.concatenate(second)}),
      Dataset::zip({Dataset::zip({five, five}).concatenate(Dataset::zip({second, second})),
                    others.concatenate(second)}),
  };
  for (const Dataset& dataset : datasets) expect_parts(dataset, Shard::kFile, 2);
}

TEST(ShardDataset, FileGivesWholeFilesInOrder) {
  const Dataset five = read_files("five", 5);  // of 3, 4, 5, 6 and 7 numbers
  EXPECT_THAT(first_numbers(shard_dataset(five, Shard::kFile, worker(1, 2))),
              ElementsAre(3, 4, 5, 6, 12, 13, 14, 15, 16, 17));
  EXPECT_THAT(first_numbers(shard_dataset(five, Shard::kAuto, worker(2, 3))),
              ElementsAre(7, 8, 9, 10, 11));
}

TEST(ShardDataset, FileRejectsWhatItCannotDivide) {
  const Dataset two = read_files("two", 2), three = read_files("three", 3);
  const std::string few = shard_error(two, Shard::kFile, worker(0, 3));
  EXPECT_THAT(few, AllOf(HasSubstr("it has 2 files for 3 workers"), HasSubstr("Shard::kData"),
                         HasSubstr("sharding_test_two")));
  EXPECT_THAT(shard_error(Dataset::range(9), Shard::kFile, worker(0, 2)),
              AllOf(HasSubstr("source without files"), HasSubstr("Shard::kData")));
  EXPECT_THAT(shard_error(two.take(3), Shard::kFile, worker(0, 2)), HasSubstr("its take()"));
  EXPECT_THAT(shard_error(Dataset::zip({two, three}), Shard::kFile, worker(0, 2)),
              HasSubstr("sources with 2 and 3 files"));
  EXPECT_THAT(shard_error(two.concatenate(Dataset::range(1)), Shard::kFile, worker(0, 2)),
              HasSubstr("source without files"));
}

TEST(ShardDataset, AutoWarnsOnceOfFewerFilesThanWorkers) {
  const Dataset two = read_files("warned", 2);
  EXPECT_THAT(shard_log(two, worker(1, 3)),
              AllOf(HasSubstr("it has 2 files for 3 workers"), HasSubstr("sharding_test_warned")));
  EXPECT_EQ(shard_log(two, worker(2, 3)), "");
  expect_parts(two, Shard::kAuto, 3);
  EXPECT_EQ(shard_log(two, worker(1, 2)), "");
  EXPECT_EQ(shard_log(Dataset::range(2), worker(1, 3)), "");
}

TEST(ShardDataset, HintIsFilledIn) {
  const Dataset dataset = Dataset::range(30).take(20).shard(ShardHint()).shuffle(9).map(kTwice);
  const Dataset inside = Dataset::range(4).shard(ShardHint()).concatenate(dataset);
  const Dataset pairs = Dataset::zip({dataset, dataset});
  for (int workers : {1, 2, 3, 7}) {
    expect_parts(dataset.batch(2), Shard::kHint, workers);
    expect_parts(dataset.batch(2), Shard::kAuto, workers);
    expect_parts(inside.batch(3), Shard::kHint, workers);
    EXPECT_EQ(shard_dataset(pairs, Shard::kHint, worker(0, workers)).size(),
              (20 + workers - 1) / workers);
  }
  const Dataset batches = Dataset::range(8).batch(2).shard(ShardHint());
  EXPECT_THAT(first_numbers(shard_dataset(batches, Shard::kAuto, worker(1, 2))),
              ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(shard_error(Dataset::range(3), Shard::kHint, worker(0, 2)),
              AllOf(HasSubstr("add shard(ShardHint())"), HasSubstr("range(0, 3)")));
}

TEST(ShardDataset, DataRejectsElementsInAnotherOrderOnEachWorker) {
  const Dataset dataset = Dataset::range(50).shuffle(50);
  EXPECT_THAT(
      shard_error(dataset.batch(2).take(5), Shard::kData, worker(0, 2)),
      AllOf(HasSubstr("take() comes after a shuffle()"), HasSubstr("put shuffle() after take()")));
  EXPECT_THAT(shard_error(Dataset::zip({Dataset::range(9), dataset}), Shard::kAuto, worker(0, 2)),
              HasSubstr("zip() comes after a shuffle()"));
  EXPECT_EQ(shard_dataset(dataset.take(5), Shard::kData, worker(0, 1)).size(), 5);
  const Dataset lucky = Dataset::range(50).filter(kIsLucky);
  const Dataset even = Dataset::range(50).map(kWithNoise).filter(kIsEven);
  for (const Dataset& random : {lucky, even, Dataset::range(5).concatenate(lucky)}) {
    EXPECT_THAT(shard_error(random.take(5), Shard::kData, worker(0, 2)),
                AllOf(HasSubstr("take() comes after a random filter()"),
                      HasSubstr("put filter() after take()")));
  }
}

TEST(ShardDataset, HintRejectsElementsInAnotherOrderOnEachWorker) {
  const Dataset fifty = Dataset::range(50), shuffled = fifty.shuffle(50).shard(ShardHint());
  for (const Shard policy : {Shard::kHint, Shard::kAuto}) {
    for (const Dataset& dataset : {shuffled, fifty.shard(ShardHint()).concatenate(shuffled)}) {
      EXPECT_THAT(shard_error(dataset.batch(4), policy, worker(0, 2)),
                  AllOf(HasSubstr("its shard(ShardHint()) comes after a shuffle()"),
                        HasSubstr("put shuffle() after shard(ShardHint())")));
    }
    EXPECT_THAT(shard_error(fifty.filter(kIsLucky).shard(ShardHint()), policy, worker(0, 2)),
                HasSubstr("shard(ShardHint()) comes after a random filter()"));
  }
}

TEST(ShardDataset, AFunctionForAnotherLastBatchIsAnError) {
  const auto batches = [](bool drop) {
    return Dataset::range(9).batch(4, {.drop_remainder = drop}).map(kTwice);
  };
  EXPECT_THAT(shard_error(batches(false), Shard::kData, worker(1, 2)),
              AllOf(HasSubstr("dataset step 3 'map'"), HasSubstr("set drop_remainder")));
  EXPECT_EQ(shard_dataset(batches(true), Shard::kData, worker(1, 2)).size(), 1);
}

TEST(ShardDataset, DynamicNeedsACoordinator) {
  EXPECT_THAT(shard_error(Dataset::range(3), Shard::kDynamic, worker(0, 2)),
              HasSubstr("create_per_worker_dataset()"));
}

TEST(InputContext, IsChecked) {
  for (const auto& [id, workers] : {std::pair(2, 2), {-1, 2}, {0, 0}, {0, -1}}) {
    EXPECT_THAT(shard_error(Dataset::range(3), Shard::kAuto, worker(id, workers)),
                HasSubstr("there is no worker " + std::to_string(id)));
  }
  EXPECT_EQ((InputContext{.num_replicas_in_sync = 4}.get_per_replica_batch_size(32)), 8);
  for (int replicas : {5, 0}) {
    EXPECT_EQ(error_text([&] {
                InputContext{.num_replicas_in_sync = replicas}.get_per_replica_batch_size(32);
              }),
              "a global batch of 32 cannot be divided among " + std::to_string(replicas) +
                  " replicas; make it a multiple of that number");
  }
}

TEST(DatasetCreator, CallsItsFunctionForEachWorker) {
  const DatasetCreator creator(
      [](const InputContext& context) { return Dataset::range(6).shard(context); });
  EXPECT_THAT(first_numbers(creator.make(worker(0, 2))), ElementsAre(0, 2, 4));
  EXPECT_THAT(first_numbers(creator(worker(1, 2))), ElementsAre(1, 3, 5));
  EXPECT_THAT(error_text([] { DatasetCreator creator(nullptr); }), HasSubstr("needs a function"));
}

}  // namespace
}  // namespace trireme
