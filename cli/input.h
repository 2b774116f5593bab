#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

// The counters of a task, by its name.
using TaskCounters = std::vector<std::pair<std::string, std::map<std::string, uint64_t>>>;

// Prints the pipelines that tasks read their input with: how long steps of training waited for
// them, and where their time went.
void show_input(const TaskCounters& tasks, bool json);

}  // namespace trireme
