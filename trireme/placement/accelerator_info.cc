#include "trireme/placement/accelerator_info.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace trireme::internal {

std::string describe(const AcceleratorInfo& accelerator) {
  constexpr double kGiB = 1 << 30;
  std::string text = absl::StrFormat(
      "gpu:%d is a %s, compute capability %d.%d, %.1f of %.1f GiB free", accelerator.index,
      accelerator.name, accelerator.compute_major, accelerator.compute_minor,
      accelerator.free_memory / kGiB, accelerator.total_memory / kGiB);
  if (!accelerator.peers.empty()) {
    text += ", reads the memory of gpu:" + absl::StrJoin(accelerator.peers, ", gpu:");
  }
  return text;
}

}  // namespace trireme::internal
