#include "trireme/cluster/task_id.h"

#include <optional>
#include <ostream>
#include <string_view>

#include "trireme/cluster/text.h"

namespace trireme {

TaskId TaskId::parse(const std::string& text) {
  constexpr std::string_view job_key = "/job:", task_key = "/task:";
  const std::string_view view = text;
  const size_t task_at = view.find(task_key);
  if (view.starts_with(job_key) && task_at != view.npos) {
    const std::string_view job = view.substr(job_key.size(), task_at - job_key.size());
    const std::optional<int> index = internal::parse_int(view.substr(task_at + task_key.size()));
    if (internal::is_name(job) && index) return {std::string(job), *index};
  }
  internal::refuse("task '" + text + "' cannot be read; write it as /job:worker/task:0");
}

std::string TaskId::to_string() const {
  return "/job:" + job + "/task:" + std::to_string(index);
}

std::ostream& operator<<(std::ostream& out, const TaskId& task) {
  return out << task.to_string();
}

}  // namespace trireme
