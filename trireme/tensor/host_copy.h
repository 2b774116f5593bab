#pragma once

#include <ATen/core/Tensor.h>

namespace trireme {

// Returns the contents of a tensor in the memory of the host: the tensor itself if it is there,
// otherwise a copy in page-locked memory, which an accelerator writes at full speed. The copy has
// the strides of the tensor if these leave no gaps. Waits for the copy. It has run with the
// stand-in accelerator only, never with CUDA.
at::Tensor copy_to_host(const at::Tensor& tensor);

}  // namespace trireme
