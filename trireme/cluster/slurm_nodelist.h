#pragma once

#include <string>
#include <vector>

namespace trireme::internal {

// Both functions throw Error if the text is malformed or would expand to more than kMaxTasks nodes.

// Expands "node[01-03,7],gpu1" to node01, node02, node03, node7, gpu1. Brackets may be anywhere in
// a name. In a name with several ("rack[0-1]node[0-3]") the last one counts fastest.
std::vector<std::string> expand_nodelist(const std::string& text);

// Expands "2(x3),1" to 2, 2, 2, 1.
std::vector<int> expand_tasks_per_node(const std::string& text);

}  // namespace trireme::internal
