#include "trireme/coordinator/element_account.h"

#include <atomic>

namespace trireme::internal {

uint64_t new_resource_id() {
  static std::atomic<uint64_t> next = 1;
  return next++;
}

}  // namespace trireme::internal
