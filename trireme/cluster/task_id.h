#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>

#include "trireme/base/error.h"  // callers of parse() catch Error

namespace trireme {

// Identifies a task of a cluster. Written "/job:worker/task:0".
struct TaskId {
  std::string job;  // name of the job: "worker"
  int index = 0;    // index of the task in its job

  // Reads "/job:worker/task:0". Throws Error unless the text has exactly this form.
  static TaskId parse(const std::string& text);
  // Returns the form that parse() reads.
  std::string to_string() const;

  // Orders tasks by job name, then by index.
  auto operator<=>(const TaskId&) const = default;
};

// Prints task.to_string().
std::ostream& operator<<(std::ostream& out, const TaskId& task);

}  // namespace trireme

// Lets tasks be keys of unordered containers.
template <>
struct std::hash<trireme::TaskId> {
  std::size_t operator()(const trireme::TaskId& task) const {
    return std::hash<std::string>()(task.job) * 31 + std::hash<int>()(task.index);
  }
};
