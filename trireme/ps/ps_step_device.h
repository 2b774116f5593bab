#pragma once

#include "absl/status/status.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/ps/ps_step.h"

namespace trireme::internal {

// Lets a program compute on the accelerators of a worker with these devices: the operators of
// replica I on gpu:I, and all others on gpu:0 unless they name another device. Pulled values,
// pushed values, results and row ids stay on the CPU. Does nothing if the worker has no
// accelerator.
absl::Status assign_to_worker(const DeviceList& devices, PsStep& program);

// Does the same for a step that the client program runs itself: operators run on the accelerators
// that they name, and all others on the default device of functions.
absl::Status assign_to_program(PsStep& program);

}  // namespace trireme::internal
