#include "trireme/base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// Returns the folder of the container, or other control group, of this process.
std::string cgroup_folder() {
  std::string folder = "/sys/fs/cgroup";
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::/", 0) == 0) folder += line.substr(3);
  }
  return folder;
}

// Returns the number in a file of a control group. Returns nullopt if there is none: the file of a
// limit says "max" then.
std::optional<uint64_t> cgroup_number(const std::string& folder, const std::string& name) {
  uint64_t number = 0;
  std::ifstream file(folder + "/" + name);
  if (!(file >> number)) return std::nullopt;
  return number;
}

}  // namespace

std::optional<uint64_t> internal::available_in_cgroup(const std::string& folder) {
  const std::optional<uint64_t> limit = cgroup_number(folder, "memory.max");
  if (!limit) return std::nullopt;
  // The kernel takes the pages of files back before the group runs out of memory. They fill most
  // of a container that has read its data.
  uint64_t of_files = 0;
  std::ifstream stat(folder + "/memory.stat");
  std::string name;
  for (uint64_t bytes = 0; stat >> name >> bytes;) {
    if (name == "active_file" || name == "inactive_file") of_files += bytes;
  }
  const uint64_t current = cgroup_number(folder, "memory.current").value_or(0);
  const uint64_t used = current - std::min(of_files, current);
  return *limit - std::min(used, *limit);
}

std::optional<int> internal::cores_in_cgroup(const std::string& folder) {
  uint64_t quota = 0, period = 0;  // The time that the group may use in each period.
  std::ifstream file(folder + "/cpu.max");
  if (!(file >> quota >> period) || period == 0) return std::nullopt;  // no quota: "max"
  return static_cast<int>(quota / period);
}

uint64_t physical_memory() {
  const uint64_t machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min(machine, cgroup_number(cgroup_folder(), "memory.max").value_or(UINT64_MAX));
}

uint64_t available_memory() {
  uint64_t available = physical_memory();
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("MemAvailable:")) continue;
    const uint64_t kilobytes = std::stoull(line.substr(line.find(':') + 1));
    available = std::min(available, kilobytes * 1024);
  }
  return std::min(available, internal::available_in_cgroup(cgroup_folder()).value_or(UINT64_MAX));
}

int usable_cores() {
  cpu_set_t set;
  // The call fails on machines with more cores than the set can hold.
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, std::min(cores, internal::cores_in_cgroup(cgroup_folder()).value_or(cores)));
}

ProcessMemory process_memory(pid_t pid) {
  ProcessMemory memory;
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  const auto kilobytes = [](const std::string& line) {
    return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  };
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) memory.resident = kilobytes(line);
    if (line.starts_with("VmHWM:")) memory.peak = kilobytes(line);
  }
  if (memory.resident == 0) {
    throw Error(ErrorCode::kNotFound, "there is no process " + std::to_string(pid));
  }
  return memory;
}

ProcessMemory process_memory() {
  return process_memory(getpid());
}

}  // namespace trireme
