#include "trireme/rpc/limits.h"

#include <unistd.h>

#include <algorithm>

namespace trireme {

uint64_t default_receive_bytes() {
  static const uint64_t bytes = [] {
    const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    return std::clamp<uint64_t>(memory / 2, uint64_t{1} << 30, uint64_t{64} << 30);
  }();
  return bytes;
}

}  // namespace trireme
