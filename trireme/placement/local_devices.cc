#include "trireme/placement/local_devices.h"

#include <ATen/DeviceAccelerator.h>

namespace trireme::internal {

int accelerator_count() {
  return at::accelerator::deviceCount();
}

c10::Device hardware_of(DeviceType type, int index) {
  const int count = type == DeviceType::kGpu ? accelerator_count() : 0;
  if (count == 0) return c10::kCPU;
  return {at::accelerator::getAccelerator(true).value(),
          static_cast<c10::DeviceIndex>(index % count)};
}

DeviceList local_device_list() {
  return {.cpus = 1, .gpus = accelerator_count()};
}

}  // namespace trireme::internal
