#include "trireme/testing/accelerator/stand_in.h"

#include <c10/util/Exception.h>

#include <optional>

#include "trireme/base/mutex.h"
#include "trireme/testing/accelerator/current_device.h"
#include "trireme/testing/accelerator/device_guard.h"
#include "trireme/testing/accelerator/device_memory.h"
#include "trireme/testing/accelerator/device_operators.h"
#include "trireme/testing/accelerator/device_stream.h"

namespace trireme {

void register_stand_in_accelerator(const StandInOptions& options) {
  static Mutex mutex;
  static std::optional<StandInOptions> registered;
  MutexLock lock(mutex);
  if (registered.has_value()) {
    TORCH_CHECK(*registered == options,
                "the stand-in accelerator is registered already, with other options");
    return;
  }
  TORCH_CHECK(options.devices >= 1 && options.devices <= internal::kMaxDevices,
              "the stand-in accelerator has from 1 to ", internal::kMaxDevices, " devices, not ",
              options.devices);
  registered = options;
  internal::set_device_count(options.devices);
  internal::protect_device_memory(options.devices, options.protection_keys);
  internal::register_device_guard();
  internal::register_device_operators();
}

StandInCounters stand_in_counters(int device) {
  const internal::DeviceWork& work = internal::device_work(device);
  const internal::DeviceMemoryUse& memory = internal::device_memory_use(device);
  return {.kernels = work.kernels,
          .host_synchronizations = work.host_synchronizations,
          .busy = Duration(work.busy),
          .bytes = memory.bytes,
          .peak_bytes = memory.peak_bytes};
}

void set_stand_in_kernel_delay(Duration delay) {
  internal::set_kernel_delay(delay);
}

}  // namespace trireme
