#include "trireme/base/ids.h"

#include <random>

#include "absl/strings/str_format.h"

namespace trireme {

uint64_t new_incarnation() {
  std::random_device device;
  uint64_t incarnation = 0;
  while (incarnation == 0) incarnation = (uint64_t{device()} << 32) | device();
  return incarnation;
}

std::string format_incarnation(uint64_t incarnation) {
  return absl::StrFormat("%016x", incarnation);
}

}  // namespace trireme
