#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cluster/task_id.h"

namespace trireme {

// The kind of a device.
enum class DeviceType {
  kCpu,  // a processor, "cpu"
  kGpu,  // a graphics processor, "gpu"
};

// Logical devices of one task: the number of each type. Several may share one piece of hardware, so
// that a machine without GPUs can run several replicas. Every task has at least one CPU.
struct DeviceList {
  int cpus = 1;  // number of CPUs
  int gpus = 0;  // number of GPUs

  // Reads "cpu:2,gpu:1" as two CPUs and one GPU. A type that is not named keeps its default. Throws
  // Error, which names the entry at fault.
  static DeviceList parse(const std::string& text);
  // Returns the list in the form that parse() reads.
  std::string to_string() const;

  // Returns true if the task has the device of this type and number.
  bool has(DeviceType type, int index) const;
  // Returns the type that is used if none is named: GPU if the task has one.
  DeviceType default_type() const { return gpus > 0 ? DeviceType::kGpu : DeviceType::kCpu; }
  // Returns the names of all devices, "/job:worker/task:0/cpu:0" and so on, the CPUs first.
  std::vector<std::string> names(const TaskId& task) const;

  // Compares all fields.
  bool operator==(const DeviceList&) const = default;
};

// Name of a device, or a part of it. Fields that are not set are left to an outer scope or to the
// defaults. Its text forms, in which '*' means "not set", the case of the type does not matter and
// the first slash may be left out:
//
//   /job:ps/task:0/cpu:0    /job:worker/replica:0/task:1/device:GPU:0    /gpu:1    GPU:1    /task:1
struct DeviceSpec {
  std::optional<std::string> job = {};  // job of the task: "worker"
  std::optional<int> replica = {};      // replica; 0 is the only one
  std::optional<int> task = {};         // index of the task in its job
  std::optional<DeviceType> type = {};  // type of the device
  std::optional<int> index = {};        // number of the device among those of its type

  // Reads one of the text forms. An empty text is an empty spec. Throws Error, which names the part
  // at fault.
  static DeviceSpec parse(const std::string& text);
  // Returns the short form, "/job:worker/task:1/gpu:1", with the fields that are set. The replica
  // is left out if it is 0.
  std::string to_string() const;
  // Returns the full form, "/job:worker/replica:0/task:1/device:GPU:1".
  std::string to_full_string() const;

  // Compares all fields.
  bool operator==(const DeviceSpec&) const = default;
};

// Prints spec.to_string().
std::ostream& operator<<(std::ostream& out, const DeviceSpec& spec);

// Returns the fields of the inner spec that are set, and those of the outer spec for the others.
DeviceSpec merge(const DeviceSpec& outer, const DeviceSpec& inner);

// Returns the task that a spec names. A job without a task means task 0, a task without a job is
// one of the master's job, and a spec with neither means the master.
TaskId task_of(const DeviceSpec& spec, const TaskId& master);

// Returns the spec with every field set. `devices` are the devices of task_of(spec, master). A spec
// without a type gets a GPU if the task has one, otherwise a CPU; one without an index, number 0.
DeviceSpec with_defaults(const DeviceSpec& spec, const TaskId& master, const DeviceList& devices);

// Shortens full names to "cpu:0,cpu:1", for texts that already name the task.
std::string short_device_names(const std::vector<std::string>& names);

// Returns the device that soft placement uses for a spec with every field set: the same device if
// the task has it, otherwise the first device of its type, otherwise cpu:0. Never changes the job
// or the task.
DeviceSpec nearest(const DeviceSpec& spec, const DeviceList& devices);

}  // namespace trireme
