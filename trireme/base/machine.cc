#include "trireme/base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// Returns the number in a file of the container, or other control group, of this process. Returns
// nullopt if there is none: the file of a limit says "max" then.
std::optional<uint64_t> cgroup_number(const std::string& name) {
  std::string folder = "/sys/fs/cgroup";
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::/", 0) == 0) folder += line.substr(3);
  }
  uint64_t number = 0;
  std::ifstream file(folder + "/" + name);
  if (!(file >> number)) return std::nullopt;
  return number;
}

}  // namespace

uint64_t physical_memory() {
  const uint64_t machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min(machine, cgroup_number("memory.max").value_or(UINT64_MAX));
}

uint64_t available_memory() {
  uint64_t available = physical_memory();
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("MemAvailable:")) continue;
    const uint64_t kilobytes = std::stoull(line.substr(line.find(':') + 1));
    available = std::min(available, kilobytes * 1024);
  }
  if (const std::optional<uint64_t> limit = cgroup_number("memory.max")) {
    const uint64_t used = cgroup_number("memory.current").value_or(0);
    available = std::min(available, *limit - std::min(used, *limit));
  }
  return available;
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
