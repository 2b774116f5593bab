#pragma once

#include <string>
#include <vector>

namespace trireme::internal {

// "node[01-03,7],gpu1" → node01, node02, node03, node7, gpu1. Brackets may stand anywhere in a
// name, and several in one ("rack[0-1]node[0-3]", the last counting fastest).
std::vector<std::string> expand_nodelist(const std::string& text);

// "2(x3),1" → 2, 2, 2, 1.
std::vector<int> expand_tasks_per_node(const std::string& text);

// Both throw Error on a malformed text, and on one that would expand to more than kMaxTasks.

}  // namespace trireme::internal
