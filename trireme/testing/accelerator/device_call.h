#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace trireme::internal {

// Runs any operator on the device of its arguments: queues the CPU's kernel on the current stream
// and replaces the arguments on the stack by the results. Used for all operators that have no
// implementation of their own.
void call_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Queues a copy to or from a device, or within one, on its current stream. The host must not use
// its own tensor before the copy has run.
void enqueue_copy(const at::Tensor& source, const at::Tensor& target);

}  // namespace trireme::internal
