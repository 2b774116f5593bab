#include "trireme/cluster/tf_config.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "trireme/cluster/json_text.h"
#include "trireme/cluster/text.h"

namespace trireme {
namespace internal {
namespace {

constexpr size_t kMaxFileBytes = 16 << 20;

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char buffer[4096];
  while (file.read(buffer, sizeof buffer), file.gcount() > 0) {
    text.append(buffer, file.gcount());
    if (text.size() > kMaxFileBytes) refuse("is larger than 16 MiB");
  }
  if (!file.eof()) {
    throw Error(ErrorCode::kNotFound, absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  return text;
}

// Some launchers write the index as a string.
int read_index(const nlohmann::json& index) {
  const std::optional<int> value =
      parse_int(index.is_string() ? index.get<std::string>() : index.dump());
  if (!value) refuse(absl::StrCat("key 'task.index': ", index.dump(), " is not a valid index"));
  return *value;
}

}  // namespace

Cluster PartialCluster::to_cluster() const {
  if (!task_type && !task_index) return Cluster(spec);
  if (!task_type) refuse(absl::StrCat(source, ": a task index needs a task type"));
  if (!task_index && is_role(*task_type) && !is_single_role(*task_type)) {
    refuse(absl::StrCat(source, ": task type '", *task_type, "' needs a task index"));
  }
  return in_context(source, [&] {
    return Cluster(spec, TaskId{*task_type, task_index.value_or(0)});
  });
}

PartialCluster read_tf_config(const Environment& environment) {
  PartialCluster found{.source = "TF_CONFIG"};
  const std::optional<std::string> text = lookup(environment, "TF_CONFIG");
  if (!text) return found;
  const nlohmann::json config = parse_json(*text, "TF_CONFIG");
  in_context("TF_CONFIG", [&] {
    if (!config.is_object()) {
      refuse(
          "is not an object; write {\"cluster\": {...}, \"task\": {\"type\": ..., \"index\": "
          "...}}");
    }
    if (config.contains("cluster")) found.spec = ClusterSpec::from_json(config["cluster"].dump());
    if (!config.contains("task")) return;
    const nlohmann::json& task = config["task"];
    if (!task.is_object()) {
      refuse(absl::StrCat("key 'task': ", task.dump(),
                          " is not an object; write {\"type\": \"worker\", \"index\": 0}"));
    }
    if (task.contains("type")) {
      if (!task["type"].is_string()) {
        refuse(absl::StrCat("key 'task.type': ", task["type"].dump(),
                            " is not a valid role; the roles are ", kRoles));
      }
      found.task_type = task["type"].get<std::string>();
    }
    if (task.contains("index")) found.task_index = read_index(task["index"]);
  });
  return found;
}

ClusterSpec read_cluster_file(const std::string& path) {
  return in_context(absl::StrCat("cluster file '", path, "'"), [&] {
    const nlohmann::json value = parse_json(read_file(path), "its text");
    if (!value.is_object() || !value.contains("cluster")) {
      return ClusterSpec::from_json(value.dump());
    }
    if (value.contains("task")) {
      refuse(
          "key 'task' does not belong in a file that all tasks share; "
          "use --task_type and --task_index");
    }
    return ClusterSpec::from_json(value["cluster"].dump());
  });
}

}  // namespace internal

TfConfigResolver::TfConfigResolver(const Environment& environment)
    : SimpleResolver(internal::read_tf_config(environment).to_cluster()) {}

ClusterFileResolver::ClusterFileResolver(const std::string& path, std::optional<TaskId> task)
    : SimpleResolver(internal::read_cluster_file(path), std::move(task)) {}

}  // namespace trireme
