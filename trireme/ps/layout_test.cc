#include "trireme/ps/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme {
namespace {

std::vector<int64_t> counts(int64_t rows, int64_t shards) {
  std::vector<int64_t> result;
  for (const RowRange& range : split_rows(rows, shards)) result.push_back(range.count);
  return result;
}

TEST(Partitioner, SplitsRowsAsEvenlyAsPossible) {
  EXPECT_EQ(counts(13, 5), (std::vector<int64_t>{3, 3, 3, 2, 2}));
  EXPECT_EQ(counts(4, 4), (std::vector<int64_t>{1, 1, 1, 1}));
  for (int64_t rows : {1, 5, 13, 64, 1001}) {
    for (int64_t shards = 1; shards <= std::min<int64_t>(rows, 9); ++shards) {
      const auto ranges = split_rows(rows, shards);
      for (int64_t row = 0; row < rows; ++row) {
        const RowRange& range = ranges.at(shard_of_row(row, rows, shards));
        EXPECT_TRUE(row >= range.first && row < range.first + range.count) << row;
      }
    }
  }
}

TEST(Partitioner, FixedNeverExceedsTheNumberOfRows) {
  const Partitioner fixed = FixedPartitioner(3);
  EXPECT_EQ(fixed({10, 2}, c10::kFloat), 3);
  EXPECT_EQ(fixed({2, 10}, c10::kFloat), 2);
  EXPECT_EQ(fixed({}, c10::kFloat), 1);
  EXPECT_THROW(FixedPartitioner(0), Error);
}

TEST(Partitioner, MinSizeKeepsShardsAboveTheMinimum) {
  EXPECT_EQ(MinSizePartitioner()({1 << 20}, c10::kFloat), 1);
  const Partitioner ours = MinSizePartitioner(256 << 10, 10);
  EXPECT_EQ(ours({1 << 17}, c10::kFloat), 2);
  EXPECT_EQ(ours({(1 << 17) + 1}, c10::kFloat), 2);
  EXPECT_EQ(MinSizePartitioner(256 << 10, 10, {.round_up_as_tensorflow = true})({(1 << 17) + 1},
                                                                                c10::kFloat),
            3);
  EXPECT_EQ(ours({3, 1 << 20}, c10::kFloat), 3);
  EXPECT_EQ(ours({1 << 24}, c10::kFloat), 10);
  EXPECT_EQ(ours({4}, c10::kFloat), 1);
  EXPECT_EQ(ours({1 << 16}, c10::kDouble), 2);
}

TEST(Partitioner, MaxSizeKeepsShardsBelowTheMaximum) {
  const Partitioner ours = MaxSizePartitioner(1 << 20);
  EXPECT_EQ(ours({1 << 18}, c10::kFloat), 1);
  EXPECT_EQ(ours({(1 << 18) + 1}, c10::kFloat), 2);
  EXPECT_EQ(ours({5, 1 << 20}, c10::kFloat), 5);  // a row is larger than the limit
  EXPECT_EQ(ours({100, 3 << 16}, c10::kFloat), 100);
  EXPECT_EQ(MaxSizePartitioner(1 << 20, 4)({1 << 22}, c10::kFloat), 4);
}

TEST(ShardPlacer, NamesShardsAndPlacesThemRoundRobin) {
  ShardPlacer placer(2, Placement::kRoundRobin, [](c10::IntArrayRef sizes, c10::ScalarType) {
    return sizes.size() == 2 ? 3 : 1;
  });
  const auto layouts = placer.place({{"v", {4}}, {"w", {5, 2}}, {"s", {}}});
  ASSERT_EQ(layouts.size(), 3u);
  EXPECT_EQ(layouts[0].shards[0].name, "v");
  EXPECT_EQ(layouts[0].shards[0].server, 0);
  ASSERT_EQ(layouts[1].shards.size(), 3u);
  EXPECT_EQ(layouts[1].shards[2].name, "w/part_2");
  EXPECT_EQ(layouts[1].shards[2].rows, (RowRange{4, 1}));
  EXPECT_EQ(layouts[1].shards[0].server, 1);
  EXPECT_EQ(layouts[1].shards[1].server, 0);
  EXPECT_EQ(layouts[2].shards[0].server, 0);
  EXPECT_EQ(placer.place({{"later", {1}}})[0].shards[0].server, 1);
}

TEST(ShardPlacer, RejectsNoServersAndInvalidShardCounts) {
  EXPECT_THROW(ShardPlacer(0, Placement::kBalanced), Error);
  ShardPlacer placer(2, Placement::kBalanced, [](auto, auto) { return 0; });
  EXPECT_THROW(placer.place({{"v", {4}}}), Error);
  ShardPlacer many(2, Placement::kBalanced, [](auto, auto) { return 100; });
  EXPECT_EQ(many.place({{"v", {4}}})[0].shards.size(), 4u);
  EXPECT_EQ(many.place({{"s", {}}})[0].shards.size(), 1u);
}

// Returns the parameters of torchvision's resnet50.
std::vector<VariableSpec> resnet50() {
  std::vector<VariableSpec> specs;
  const auto add = [&](const std::string& name, std::vector<int64_t> sizes) {
    specs.push_back({name, std::move(sizes)});
  };
  const auto norm = [&](const std::string& name, int64_t width) {
    add(name + ".weight", {width});
    add(name + ".bias", {width});
  };
  add("conv1.weight", {64, 3, 7, 7});
  norm("bn1", 64);
  int64_t in = 64;
  const std::vector<int> blocks = {3, 4, 6, 3};
  for (int layer = 0; layer < 4; ++layer) {
    const int64_t width = 64 << layer;
    for (int block = 0; block < blocks[layer]; ++block) {
      const std::string name = "layer" + std::to_string(layer + 1) + "." + std::to_string(block);
      add(name + ".conv1.weight", {width, in, 1, 1});
      norm(name + ".bn1", width);
      add(name + ".conv2.weight", {width, width, 3, 3});
      norm(name + ".bn2", width);
      add(name + ".conv3.weight", {width * 4, width, 1, 1});
      norm(name + ".bn3", width * 4);
      if (block == 0) {
        add(name + ".downsample.0.weight", {width * 4, in, 1, 1});
        norm(name + ".downsample.1", width * 4);
      }
      in = width * 4;
    }
  }
  add("fc.weight", {1000, 2048});
  add("fc.bias", {1000});
  return specs;
}

// Returns the parameters of transformers' bert-base-uncased.
std::vector<VariableSpec> bert_base() {
  std::vector<VariableSpec> specs;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    specs.push_back({name + ".weight", {out, in}});
    specs.push_back({name + ".bias", {out}});
  };
  const auto norm = [&](const std::string& name) {
    specs.push_back({name + ".weight", {768}});
    specs.push_back({name + ".bias", {768}});
  };
  specs.push_back({"embeddings.word", {30522, 768}});
  specs.push_back({"embeddings.position", {512, 768}});
  specs.push_back({"embeddings.type", {2, 768}});
  norm("embeddings.norm");
  for (int layer = 0; layer < 12; ++layer) {
    const std::string name = "layer." + std::to_string(layer);
    for (const char* part : {".query", ".key", ".value", ".output"}) linear(name + part, 768, 768);
    norm(name + ".attention.norm");
    linear(name + ".intermediate", 3072, 768);
    linear(name + ".dense", 768, 3072);
    norm(name + ".norm");
  }
  linear("pooler", 768, 768);
  return specs;
}

struct Model {
  const char* name;
  std::vector<VariableSpec> specs;
  int64_t parameters;
};

TEST(ShardPlacer, BalancesRealModels) {
  for (const Model& model :
       {Model{"ResNet-50", resnet50(), 25557032}, Model{"BERT-base", bert_base(), 109482240}}) {
    for (int servers : {2, 4, 7}) {
      ShardPlacer placer(servers, Placement::kBalanced, MaxSizePartitioner(16 << 20));
      int64_t largest = 0;
      for (const VariableLayout& layout : placer.place(model.specs)) {
        int64_t rows = 0;
        for (const auto& shard : layout.shards) {
          largest = std::max(largest, layout.shard_bytes(shard));
          rows += shard.rows.count;
        }
        EXPECT_EQ(rows, layout.sizes[0]) << layout.name;
      }
      const auto& bytes = placer.bytes();
      const double total = std::accumulate(bytes.begin(), bytes.end(), 0.0);
      EXPECT_EQ(total, model.parameters * 4.0) << model.name;
      EXPECT_LE(largest, 16 << 20) << model.name;
      EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()) / (total / servers), 1.1)
          << model.name << " on " << servers;
    }
  }
}

TEST(ShardPlacer, AVariableWithAServerIsWholeThere) {
  for (const Placement placement : {Placement::kRoundRobin, Placement::kBalanced}) {
    ShardPlacer placer(2, placement, FixedPartitioner(2));
    const auto layouts = placer.place({{.name = "a", .sizes = {4}, .server = 1},
                                       {.name = "b", .sizes = {4}},
                                       {.name = "c", .sizes = {4}, .server = 1}});
    for (int pinned : {0, 2}) {
      ASSERT_EQ(layouts[pinned].shards.size(), 1u);
      EXPECT_EQ(layouts[pinned].shards[0].server, 1);
      EXPECT_EQ(layouts[pinned].shards[0].rows.count, 4);
    }
    EXPECT_EQ(layouts[1].shards[0].server, 0);
    EXPECT_EQ(placer.bytes()[0] + placer.bytes()[1], 48);
  }
}

}  // namespace
}  // namespace trireme
