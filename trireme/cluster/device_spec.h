#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cluster/task_id.h"

namespace trireme {

enum class DeviceType { kCpu, kGpu };

// The logical devices of one task: how many of each type. Several may share one piece of hardware,
// so that a CPU machine can run several replicas. Every task has a CPU.
struct DeviceList {
  int cpus = 1;
  int gpus = 0;

  // "cpu:2,gpu:1" means two CPUs and one GPU; a type that is not named keeps its default.
  static DeviceList parse(const std::string& text);
  std::string to_string() const;

  bool has(DeviceType type, int index) const;
  DeviceType default_type() const { return gpus > 0 ? DeviceType::kGpu : DeviceType::kCpu; }
  // "/job:worker/task:0/cpu:0" and so on, the CPUs first.
  std::vector<std::string> names(const TaskId& task) const;

  bool operator==(const DeviceList&) const = default;
};

// A device, or part of a device's name; what is not set is left to an outer scope or to the
// defaults. Text forms, in which '*' means not set and the type's case does not matter:
//
//   /job:ps/task:0/cpu:0       /job:worker/replica:0/task:1/device:GPU:0       /gpu:1       /task:1
struct DeviceSpec {
  std::optional<std::string> job = {};
  std::optional<int> replica = {};
  std::optional<int> task = {};
  std::optional<DeviceType> type = {};
  std::optional<int> index = {};

  // Throws Error, which names the part at fault. The empty text is the empty spec.
  static DeviceSpec parse(const std::string& text);
  // Short: "/job:worker/task:1/gpu:1". Only what is set; the replica only if it is not 0.
  std::string to_string() const;
  // In full: "/job:worker/replica:0/task:1/device:GPU:1".
  std::string to_full_string() const;

  bool operator==(const DeviceSpec&) const = default;
};

std::ostream& operator<<(std::ostream& out, const DeviceSpec& spec);

// Each field from the inner spec if it is set there, else from the outer one.
DeviceSpec merge(const DeviceSpec& outer, const DeviceSpec& inner);

// The task that a spec means: a job without a task means task 0, a task without a job is one of the
// master's job, and neither means the master.
TaskId task_of(const DeviceSpec& spec, const TaskId& master);

// The spec with every field set. `devices` are those of task_of(spec, master): without a device, or
// with an index alone, its GPUs come first, else its CPUs; without an index the device is number 0.
DeviceSpec with_defaults(const DeviceSpec& spec, const TaskId& master, const DeviceList& devices);

// "cpu:0,cpu:1" of names in full, for where the task stands beside them already.
std::string short_device_names(const std::vector<std::string>& names);

// Soft placement of a spec with every field set on a task that may lack the device: its type may
// change and its index, never its job or task. The first device of the type, else cpu:0.
DeviceSpec nearest(const DeviceSpec& spec, const DeviceList& devices);

}  // namespace trireme
