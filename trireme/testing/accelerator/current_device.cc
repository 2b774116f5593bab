#include "trireme/testing/accelerator/current_device.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <utility>

namespace trireme::internal {
namespace {

std::atomic<int> g_device_count = 0;
thread_local int t_device = 0;

}  // namespace

void set_device_count(int count) {
  g_device_count = count;
}

int device_count() {
  return g_device_count;
}

int current_device() {
  return t_device;
}

int exchange_current_device(int device) {
  if (device < 0) return t_device;
  TORCH_CHECK(device < device_count(), "gpu:", device, " does not exist; there are ",
              device_count(), " devices");
  return std::exchange(t_device, device);
}

}  // namespace trireme::internal
