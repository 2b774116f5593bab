#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>

#include "trireme/base/error.h"  // who parses must be able to catch

namespace trireme {

// One task of a cluster, written "/job:worker/task:0".
struct TaskId {
  std::string job;
  int index = 0;

  // Throws Error unless the text is exactly of the form above.
  static TaskId parse(const std::string& text);
  std::string to_string() const;

  // By job name, then by index.
  auto operator<=>(const TaskId&) const = default;
};

std::ostream& operator<<(std::ostream& out, const TaskId& task);

}  // namespace trireme

template <>
struct std::hash<trireme::TaskId> {
  std::size_t operator()(const trireme::TaskId& task) const {
    return std::hash<std::string>()(task.job) * 31 + std::hash<int>()(task.index);
  }
};
