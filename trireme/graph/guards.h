#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "trireme/graph/guard.h"

// Some kernels of LibTorch trust their caller: autograd passes to a backward kernel the indices and
// statistics that the forward kernel made, so the backward kernel does not check them. But a graph
// may come from an untrusted peer. A guard checks the arguments that could make such a kernel
// access memory outside of its tensors, end the process or never return. A fuzzer found the kernels
// that need a guard: it ran them on corrupt arguments, with every tensor between unmapped pages
// (docs/decisions/operators-in-graphs.md).
namespace trireme::internal {

// Returns the guard of an operator, given its name without overload ("aten::nll_loss_backward");
// null if it needs none.
Guard find_guard(const std::string& name);

// Checks that the indices of a sparse tensor are in range, because kernels trust them. Must be
// called at each use, since a graph can write to the indices. Throws Error.
void guard_sparse(const at::Tensor& tensor);

}  // namespace trireme::internal
