#include "trireme/base/lru_map.h"

#include <gtest/gtest.h>

#include <string>

namespace trireme {
namespace {

std::vector<int> keys_of(const LruMap<int, std::string>& map) {
  std::vector<int> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

LruMap<int, std::string> map_of_four() {
  LruMap<int, std::string> map;
  for (int key : {1, 2, 3, 4}) map.put(key, std::to_string(key));
  return map;
}

TEST(LruMap, EvictsTheEntryThatWasUsedLongestAgo) {
  auto map = map_of_four();
  ASSERT_NE(map.find(1), nullptr);
  EXPECT_EQ(*map.find(1), "1");
  EXPECT_EQ(map.find(5), nullptr);
  EXPECT_EQ(map.evict(2), (std::vector<std::string>{"2", "3"}));
  EXPECT_EQ(keys_of(map), (std::vector{1, 4}));
  EXPECT_EQ(map.find(2), nullptr);
  EXPECT_TRUE(map.evict(2).empty());
}

TEST(LruMap, ReplacingAValueUsesItsEntry) {
  auto map = map_of_four();
  map.put(1, "one");
  EXPECT_EQ(map.size(), 4u);
  EXPECT_EQ(map.evict(1), (std::vector<std::string>{"2", "3", "4"}));
  EXPECT_EQ(*map.find(1), "one");
}

TEST(LruMap, PassesOverEntriesThatMayNotBeEvicted) {
  auto map = map_of_four();
  const auto is_odd = [](const std::string& value) { return std::stoi(value) % 2 == 1; };
  EXPECT_EQ(map.evict(1, is_odd), (std::vector<std::string>{"1", "3"}));
  EXPECT_EQ(keys_of(map), (std::vector{4, 2}));
}

TEST(LruMap, ClearForgetsAllEntries) {
  auto map = map_of_four();
  map.clear();
  EXPECT_EQ(map.size(), 0u);
  EXPECT_EQ(map.find(1), nullptr);
  map.put(1, "1");
  EXPECT_EQ(keys_of(map), (std::vector{1}));
}

}  // namespace
}  // namespace trireme
