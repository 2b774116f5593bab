#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Descriptions of the GPUs of a machine, for the log of a server.
namespace trireme::internal {

// Description of one GPU.
struct AcceleratorInfo {
  int index = 0;                             // number of the GPU on its machine
  std::string name = {};                     // its model: "NVIDIA H100 80GB HBM3"
  int compute_major = 0, compute_minor = 0;  // compute capability
  uint64_t total_memory = 0;                 // bytes
  uint64_t free_memory = 0;                  // bytes that no process uses
  std::vector<int> peers = {};  // GPUs whose memory it reads without a copy on the host
};

#ifdef TRIREME_CUDA
// Returns the GPUs that CUDA can use in this process, and enables their access to each other's
// memory. Creates a CUDA context on each, which takes memory there. Throws c10::Error if CUDA
// reports an error.
std::vector<AcceleratorInfo> cuda_accelerators();
#else
// Returns nothing: Trireme was built without TRIREME_CUDA.
inline std::vector<AcceleratorInfo> cuda_accelerators() {
  return {};
}
#endif

// Returns a line for the log: "gpu:0 is a NVIDIA H100, compute capability 9.0, 79.1 of 79.6 GiB
// free, reads the memory of gpu:1".
std::string describe(const AcceleratorInfo& accelerator);

}  // namespace trireme::internal
