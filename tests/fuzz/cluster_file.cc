// Any cluster file gives an Error, or a spec that is the same after it is written and read again.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "trireme/cluster/resolver.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("cluster", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) {
    __builtin_trap();
  }
  try {
    const trireme::ClusterFileResolver resolver(path);
    const trireme::ClusterSpec spec = resolver.cluster().spec;
    if (!spec.empty() && trireme::ClusterSpec::from_json(spec.to_json()) != spec) __builtin_trap();
  } catch (const trireme::Error&) {
  }
  return 0;
}
