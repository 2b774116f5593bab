#pragma once

#include <c10/core/Device.h>

#include "trireme/cluster/device_spec.h"

// The hardware behind the logical devices of this process.
namespace trireme::internal {

// Returns the number of accelerators (GPUs) that LibTorch can use in this process.
int accelerator_count();

// Returns the hardware behind a logical device. All CPUs of a process are the same hardware. gpu:I
// is accelerator number I, modulo their number; it is the CPU if the process has no accelerator, so
// that programs for GPUs can be tried on any machine.
c10::Device hardware_of(DeviceType type, int index);

// Returns the devices of a machine: one CPU and all its accelerators.
DeviceList local_device_list();

}  // namespace trireme::internal
