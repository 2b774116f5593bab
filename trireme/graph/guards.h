#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "trireme/graph/guard.h"

// Some kernels of LibTorch trust their caller: autograd gives a backward kernel the indices and
// statistics that the forward kernel made, so it does not look at them. A graph may come from
// anybody. A guard checks what such a kernel would follow out of its memory; which kernels need one
// was found by running them on spoiled arguments, with every tensor between unmapped pages
// (docs/decisions/operators-in-graphs.md).
namespace trireme::internal {

// For an operator's name without overload ("aten::nll_loss_backward"); null if it needs none.
Guard find_guard(const std::string& name);

// A sparse tensor says where its values belong; kernels believe it. Checked at each use, since the
// indices can be written to. Throws Error.
void guard_sparse(const at::Tensor& tensor);

}  // namespace trireme::internal
