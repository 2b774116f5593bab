#include "trireme/testing/accelerator/device_operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "trireme/testing/accelerator/call_arguments.h"
#include "trireme/testing/accelerator/device_call.h"
#include "trireme/testing/accelerator/device_memory.h"

// Operators that cannot run as a kernel: those that allocate, make views, or move data.
namespace trireme::internal {
namespace {

constexpr c10::DispatchKeySet kDeviceKeys(c10::DispatchKey::PrivateUse1);

// Checks the options of a new tensor and returns its device, which may be the current one.
c10::Device device_of_new(std::optional<at::Layout> layout, std::optional<at::Device> device,
                          std::optional<bool> pin_memory) {
  TORCH_CHECK(at::layout_or_default(layout) == at::kStrided && !pin_memory.value_or(false),
              "gpu: only strided tensors without pinned memory can be allocated");
  return device.value_or(c10::Device(c10::kPrivateUse1));
}

at::Tensor empty_on_device(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory,
                           std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(device_of_new(layout, device, pin_memory));
  return at::detail::empty_generic(size, &device_allocator(), kDeviceKeys,
                                   at::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided_on_device(at::IntArrayRef size, at::IntArrayRef stride,
                                   std::optional<at::ScalarType> dtype,
                                   std::optional<at::Layout> layout,
                                   std::optional<at::Device> device,
                                   std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(device_of_new(layout, device, pin_memory));
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kDeviceKeys,
                                           at::dtype_or_default(dtype));
}

const at::Tensor& resize_on_device(const at::Tensor& self, at::IntArrayRef size,
                                   std::optional<at::MemoryFormat> memory_format) {
  const size_t bytes =
      at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset());
  if (bytes > self.storage().nbytes()) grow_device_storage(self.storage(), bytes);
  return at::native::resize_(self, size, memory_format);  // The storage suffices now.
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (target.numel() == 0) return target;
  if (source.is_cpu()) {
    // As on GPUs, pageable memory is read before the call returns.
    const bool must_copy = non_blocking && !source.is_pinned();
    enqueue_copy(must_copy ? copy_on_host(source) : source, target);
    if (!non_blocking) current_stream(target.device().index()).synchronize();
  } else if (target.is_cpu()) {
    enqueue_copy(source, target);
    const bool later = non_blocking && target.is_pinned();
    if (!later) current_stream(source.device().index()).synchronize();
  } else if (source.device() == target.device()) {
    enqueue_copy(source, target);
  } else {
    // No thread can access two devices, so the data goes by way of the host's memory.
    const at::Tensor staged = at::empty(source.sizes(), source.options().device(at::kCPU));
    enqueue_copy(source, staged);
    auto recording = current_stream(source.device().index()).record();
    current_stream(target.device().index()).wait_for(std::move(recording));
    enqueue_copy(staged, target);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, /*non_blocking=*/false);
}

// The CPU's kernel draws from the default generator of the CPU. This one draws from the device's.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  if (!train.value_or(true) || input.numel() == 0) {
    return {input.clone(), at::ones_like(input, at::kBool)};
  }
  const at::Tensor mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input * mask * (p == 1 ? 0 : 1 / (1 - p)), mask};
}

// LSTM and GRU cells, which LibTorch expects of a device but has not for the CPU. They are composed
// of operators that have gradients.
at::Tensor with_bias(const at::Tensor& gates, const std::optional<at::Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cell,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  const at::Tensor gates =
      with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const auto parts = gates.chunk(4, 1);  // input, forget, cell, output
  const at::Tensor next = parts[1].sigmoid() * cell + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * next.tanh(), next, gates};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates,
                                            const at::Tensor& hidden,
                                            const std::optional<at::Tensor>& input_bias,
                                            const std::optional<at::Tensor>& hidden_bias) {
  const auto input = with_bias(input_gates, input_bias).chunk(3, 1);  // reset, update, new
  const auto own = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = (input[0] + own[0]).sigmoid();
  const at::Tensor made = (input[2] + reset * own[2]).tanh();
  return {made + (input[1] + own[1]).sigmoid() * (hidden - made), made};
}

void register_own_operators(torch::Library& library) {
  library.impl("empty.memory_format", empty_on_device);
  library.impl("empty_strided", empty_strided_on_device);
  library.impl("resize_", resize_on_device);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("native_dropout", native_dropout);
  // Kernels that are queued keep their memory anyway.
  library.impl("record_stream", [](at::Tensor&, at::Stream) {});

  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("set_.source_Storage", [](at::Tensor& self, at::Storage source) -> at::Tensor& {
    return at::native::set_(self, std::move(source));
  });
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
}

}  // namespace

void grow_device_storage(const c10::Storage& storage, size_t bytes) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto options = at::TensorOptions(storage.device()).dtype(at::kByte);
  const at::Tensor grown = at::empty({static_cast<int64_t>(bytes)}, options);
  const auto kept = static_cast<int64_t>(std::min(bytes, storage.nbytes()));
  if (kept > 0) {
    const at::Tensor old = at::empty({0}, options).set_(storage, 0, {kept}, {1});
    grown.narrow(0, 0, kept).copy_(old);
  }
  storage.set_data_ptr_noswap(std::move(grown.storage().mutable_data_ptr()));
  storage.set_nbytes(bytes);
}

void register_device_operators() {
  using torch::CppFunction;
  // Never deleted, which would remove the operators.
  static auto& libraries = *new std::vector<torch::Library>;
  const auto library = [&](const char* name, c10::DispatchKey key) -> torch::Library& {
    return libraries.emplace_back(torch::Library::IMPL, name, key, __FILE__, __LINE__);
  };
  register_own_operators(library("aten", c10::DispatchKey::PrivateUse1));
  // LibTorch composes these from operators that the CPU has no kernels for, or from others than
  // the CPU uses.
  for (const char* name :
       {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm"}) {
    libraries[0].impl(name, CppFunction::makeFromBoxedFunction<&call_on_device>());
  }
  // On GPUs this is one kernel for all tensors of a list.
  libraries[0].impl("_foreach_add.List", CppFunction::makeFromBoxedFunction<&call_on_device>());
  for (const auto key : {c10::DispatchKey::PrivateUse1, c10::DispatchKey::AutogradPrivateUse1}) {
    torch::Library& cells = library("aten", key);
    cells.impl("_thnn_fused_lstm_cell", lstm_cell);
    cells.impl("_thnn_fused_gru_cell", gru_cell);
  }
  // Conjugated and negated tensors are resolved by copying them, so the copy must accept them.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    library("aten", key).impl("_copy_from", CppFunction::makeFallthrough());
  }
  library("_", c10::DispatchKey::PrivateUse1)
      .fallback(CppFunction::makeFromBoxedFunction<&call_on_device>());
}

}  // namespace trireme::internal
