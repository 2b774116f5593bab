#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::internal {

// Decides whether guards on this thread trust the contents of tensors on accelerators while it
// lives; otherwise they do not. To read them, the host would have to wait for the device in the
// middle of a step. Only graphs that this process has captured itself may be trusted: their memory
// is its own, and LibTorch trusts the same contents in eager code. Contents on the CPU, and all
// shapes, are checked nevertheless. Objects may be nested.
class TrustDeviceContents {
 public:
  explicit TrustDeviceContents(bool trusted);
  ~TrustDeviceContents();

  TrustDeviceContents(const TrustDeviceContents&) = delete;
  TrustDeviceContents& operator=(const TrustDeviceContents&) = delete;

 private:
  const bool before_;
};

// Returns true if guards on this thread must not read the contents of a tensor.
bool has_trusted_contents(const at::Tensor& tensor);

}  // namespace trireme::internal
