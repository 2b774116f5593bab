#include "trireme/base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// Returns the memory limit that a container or another control group sets for this process, or
// UINT64_MAX if there is none.
uint64_t cgroup_limit() {
  std::string folder = "/sys/fs/cgroup";
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::/", 0) == 0) folder += line.substr(3);
  }
  uint64_t limit = 0;
  std::ifstream file(folder + "/memory.max");
  return file >> limit ? limit : UINT64_MAX;  // The file says "max" if there is no limit.
}

}  // namespace

uint64_t physical_memory() {
  const uint64_t machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min(machine, cgroup_limit());
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
