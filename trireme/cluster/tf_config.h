#pragma once

#include <optional>
#include <string>

#include "trireme/cluster/resolver.h"

namespace trireme::internal {

// A cluster, and as much of the task as its source told; flags may still replace either part.
struct Finding {
  std::string source;  // what an error names, as "TF_CONFIG"
  ClusterSpec spec = {};
  std::optional<std::string> task_type = {};
  std::optional<int> task_index = {};

  // Throws Error if the task is half given or not in the spec. The chief and the evaluator need no
  // index.
  Cluster settle() const;
};

// All unset if there is no TF_CONFIG.
Finding read_tf_config(const Environment& environment);

ClusterSpec read_cluster_file(const std::string& path);

}  // namespace trireme::internal
