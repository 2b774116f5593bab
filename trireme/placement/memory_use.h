#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "trireme/graph/plan.h"

namespace trireme::internal {

// Tells which values of a plan share memory, and what is written. The plan must outlive it.
class MemoryUse {
 public:
  // Nodes of more replicas than `replicas` count as outside of them.
  MemoryUse(const Plan& plan, int replicas);

  uint32_t storage(int64_t value) const { return plan_.storages[value]; }
  // Returns the variable that a value's memory belongs to.
  std::optional<uint32_t> variable_of(int64_t value) const;
  // Returns true if some node writes to a value's memory, which belongs to no variable.
  bool is_written(int64_t value) const { return written_.contains(storage(value)); }
  // Returns the variables that nodes of replicas write to.
  const std::set<uint32_t>& written_in_replicas() const { return written_in_replicas_; }
  // Returns true if the contents of a value may change after it was made.
  bool may_change(int64_t value) const {
    return is_written(value) || variable_of(value).has_value();
  }

  // Returns the replica that a node belongs to; -1 for none.
  int replica_of(const proto::Node& node) const {
    const int replica = static_cast<int>(node.replica()) - 1;
    return replica < replicas_ ? replica : -1;
  }
  // Returns the arguments that a node writes to.
  std::vector<int> written_by(int node) const;
  // Returns the argument whose memory the results of a node that writes nothing share.
  std::optional<int64_t> view_base(int node) const;

 private:
  const Plan& plan_;
  const int replicas_;
  std::map<uint32_t, uint32_t> variables_;  // storage to the variable that it belongs to
  std::set<uint32_t> written_;              // written storages that belong to no variable
  std::set<uint32_t> written_in_replicas_;
};

}  // namespace trireme::internal
