#pragma once

#include <c10/core/Device.h>

#include <string>

#include "trireme/cluster/device_spec.h"

// The hardware behind the logical devices of this process.
namespace trireme::internal {

// Returns the number of accelerators (GPUs) that LibTorch can use in this process.
int accelerator_count();

// Returns the hardware behind a logical device. All CPUs of a process are the same hardware. gpu:I
// is accelerator number I, modulo their number; it is the CPU if the process has no accelerator, so
// that programs for GPUs can be tried on any machine.
c10::Device hardware_of(DeviceType type, int index);

// Returns the devices of a machine: one CPU and all its accelerators. A server has these unless it
// declares others.
DeviceList local_device_list();

// Returns the devices that a program may name for what runs in the program itself: all accelerators
// of the machine, and more CPUs than anyone names, since all CPUs are the same hardware.
DeviceList program_device_list();

// Returns a sentence without a full stop about the accelerators of the machine: "LibTorch finds 2
// GPUs on this machine, numbered from 0".
std::string describe_accelerators();

}  // namespace trireme::internal
