// Compiled into the library with the CMake option TRIREME_CUDA. CI compiles it against the headers
// of CUDA (tools/check_cuda) and cannot run it.
#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "trireme/placement/accelerator_info.h"

namespace trireme::internal {

std::vector<AcceleratorInfo> cuda_accelerators() {
  const c10::DeviceIndex count = c10::cuda::device_count();
  std::vector<AcceleratorInfo> accelerators;
  for (c10::DeviceIndex index = 0; index < count; ++index) {
    const c10::cuda::CUDAGuard device(index);  // cudaMemGetInfo() asks the current device.
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    size_t free_memory = 0, total_memory = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free_memory, &total_memory));
    AcceleratorInfo accelerator{.index = index,
                                .name = properties.name,
                                .compute_major = properties.major,
                                .compute_minor = properties.minor,
                                .total_memory = total_memory,
                                .free_memory = free_memory};
    for (c10::DeviceIndex peer = 0; peer < count; ++peer) {
      // LibTorch enables the access of a pair when it is asked for it the first time.
      if (peer != index && at::cuda::get_p2p_access(index, peer)) accelerator.peers.push_back(peer);
    }
    accelerators.push_back(std::move(accelerator));
  }
  return accelerators;
}

}  // namespace trireme::internal
