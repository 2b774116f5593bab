#pragma once

#include <optional>
#include <string>

#include "trireme/cluster/resolver.h"

namespace trireme::internal {

// A cluster, and as much of the task as its source gives. Flags may still replace either part of
// the task.
struct PartialCluster {
  std::string source;  // name of the source in errors, as "TF_CONFIG"
  ClusterSpec spec = {};
  std::optional<std::string> task_type = {};
  std::optional<int> task_index = {};

  // Throws Error if only half of the task is given, or if it is not in the spec. The chief and the
  // evaluator need no index.
  Cluster to_cluster() const;
};

// Reads the variable TF_CONFIG. Returns an empty result if it is not set.
PartialCluster read_tf_config(const Environment& environment);

// Reads a file with a cluster spec as JSON. Throws Error, which names the file.
ClusterSpec read_cluster_file(const std::string& path);

}  // namespace trireme::internal
