#include "trireme/exec/current_streams.h"

#include <ATen/DeviceAccelerator.h>

namespace trireme::internal {

std::vector<c10::Stream> current_streams() {
  std::vector<c10::Stream> streams;
  const c10::DeviceIndex devices = at::accelerator::deviceCount();
  if (devices == 0) return streams;
  const auto type = at::accelerator::getAccelerator(true).value();
  const c10::impl::VirtualGuardImpl guard(type);
  for (c10::DeviceIndex i = 0; i < devices; ++i) streams.push_back(guard.getStream({type, i}));
  return streams;
}

}  // namespace trireme::internal
