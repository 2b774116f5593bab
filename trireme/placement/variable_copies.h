#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "trireme/placement/device_graph_builder.h"

namespace trireme::internal {

// The copies of variables in a graph for devices: one on each device that holds the variable, and
// one for each replica if replicas write to it. Numbers are those of the new graph. Not
// thread-safe.
class VariableCopies {
 public:
  // `replicas` has the device of each replica, `holders` the devices that hold each variable. Both,
  // and the graph, must outlive it.
  VariableCopies(const std::vector<c10::Device>& replicas,
                 const std::vector<std::vector<c10::Device>>& holders, DeviceGraphBuilder& graph)
      : replicas_(replicas), holders_(holders), graph_(graph) {}

  // Adds the next variable, with its values on the devices that hold it, in their order. They are
  // empty if no node uses the variable.
  void add(std::vector<uint32_t> values) { held_.push_back(std::move(values)); }

  // Returns a replica's own copy of a variable. The first call makes the copies of all replicas,
  // before any of them writes.
  uint32_t of_replica(uint32_t variable, int replica);
  // Returns true if replicas have copies of some variable that were not merged since.
  bool has_unmerged() const { return !of_replicas_.empty(); }
  // Gives the variable the mean of the replicas' copies, or the copy of replica 0 for integers.
  // Returns false if the replicas have none.
  bool merge(uint32_t variable);

  // Gives the other devices the contents that the variable has on its first device.
  void follow_first(uint32_t variable) { copy_to_others(variable, held_[variable].front()); }

 private:
  // Assigns a value on the variable's first device to its copies on the others.
  void copy_to_others(uint32_t variable, uint32_t value);

  const std::vector<c10::Device>& replicas_;
  const std::vector<std::vector<c10::Device>>& holders_;
  DeviceGraphBuilder& graph_;
  std::vector<std::vector<uint32_t>> held_;  // values of each variable, by device
  // The replicas' copies of variables that were not merged since.
  std::map<uint32_t, std::vector<uint32_t>> of_replicas_;
};

}  // namespace trireme::internal
