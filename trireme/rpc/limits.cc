#include "trireme/rpc/limits.h"

#include <algorithm>

#include "trireme/base/machine.h"

namespace trireme {

uint64_t default_receive_bytes() {
  static const uint64_t bytes = [] {
    return std::clamp<uint64_t>(physical_memory() / 2, uint64_t{1} << 30, uint64_t{64} << 30);
  }();
  return bytes;
}

}  // namespace trireme
