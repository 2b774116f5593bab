#include "trireme/placement/local_devices.h"

#include <ATen/DeviceAccelerator.h>

#include <limits>

#include "absl/strings/str_cat.h"

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

DeviceList program_device_list() {
  return {.cpus = std::numeric_limits<int>::max(), .gpus = accelerator_count()};
}

std::string describe_accelerators() {
  const int count = accelerator_count();
  if (count == 0) return "LibTorch finds no GPU on this machine";
  if (count == 1) return "LibTorch finds one GPU on this machine, gpu:0";
  return absl::StrCat("LibTorch finds ", count, " GPUs on this machine, numbered from 0");
}

}  // namespace trireme::internal
