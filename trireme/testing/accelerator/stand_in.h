#pragma once

#include <cstdint>

#include "trireme/base/clock.h"

namespace trireme {

// Options of the stand-in accelerator.
struct StandInOptions {
  // Number of devices, gpu:0 and following; at most kMaxDevices (current_device.h).
  int devices = 2;
  // False protects memory with mprotect() even if the processor has protection keys. Pages are then
  // open to the whole process while a kernel runs on them.
  bool protection_keys = true;

  bool operator==(const StandInOptions&) const = default;
};

// Registers a stand-in for an accelerator as LibTorch's PrivateUse1 device, with the name "gpu". It
// behaves as a GPU does, except for its speed, so that code for GPUs can be tested without one:
//
//  - Each device has its own memory. The CPU faults if it reads or writes it, and so do the kernels
//    of another device.
//  - Operators return before they have run. Their kernels, which are those of the CPU, run in the
//    order of their stream on the stream's thread. An error of a kernel is thrown by the next
//    synchronization of its stream.
//  - Operators whose results the host must see (item(), nonzero(), ...) and copies between the host
//    and a device that are not non_blocking block the host, which is counted.
//
// A GPU's allocator may reuse memory before another stream has read it, unless record_stream() is
// called. Here a queued kernel keeps its memory, so a missing call is not found.
//
// Call it before the first backward pass of the process, since the autograd engine starts a thread
// for each device then. Later calls must have the same options and do nothing.
void register_stand_in_accelerator(const StandInOptions& options = {});

// Counters of one device since the start of the process.
struct StandInCounters {
  int64_t kernels = 0;                // kernels that have run
  int64_t host_synchronizations = 0;  // times that the host waited for the device
  Duration busy = {};                 // time of the kernels, summed over the streams
  int64_t bytes = 0;                  // bytes allocated now
  int64_t peak_bytes = 0;             // highest value of `bytes` so far
};

// Returns the counters of a device.
StandInCounters stand_in_counters(int device);

// Makes each kernel that starts from now on take at least `delay`.
void set_stand_in_kernel_delay(Duration delay);

}  // namespace trireme
