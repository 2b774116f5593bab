#pragma once

namespace trireme {

// The way in which collectives move tensors between tasks.
enum class CommunicationImplementation {
  kAuto,  // shared memory between tasks of one machine, the ring between machines
  kRing,  // our ring: the cluster's ports and certificates
  kShm,   // shared memory; an error unless all tasks are on one machine
  kGloo,  // Gloo over TCP, without certificates
  kNccl,  // NCCL; needs a build with it
};

}  // namespace trireme
