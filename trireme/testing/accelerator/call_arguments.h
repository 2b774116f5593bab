#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>
#include <utility>
#include <vector>

#include "trireme/testing/accelerator/device_stream.h"

// How the arguments of an operator's call are translated for the kernels of the CPU.
namespace trireme::internal {

// Returns the value with each of its tensors replaced by convert(tensor).
template <typename Convert>
c10::IValue map_tensors(const c10::IValue& value, Convert&& convert) {
  if (value.isTensor()) return convert(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(convert(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional(convert(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

// Returns true if the operator's argument is a generator, or may be one.
bool takes_generator(const c10::Argument& argument);

// Returns the arguments for a call on the CPU: tensors and generators are replaced as given,
// devices by the CPU. convert_generator() gets an undefined generator if the argument is None.
template <typename ConvertTensor, typename ConvertGenerator>
torch::jit::Stack convert_arguments(const c10::FunctionSchema& schema,
                                    const torch::jit::Stack& arguments,
                                    ConvertTensor&& convert_tensor,
                                    ConvertGenerator&& convert_generator) {
  torch::jit::Stack converted;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (takes_generator(schema.arguments()[i])) {
      converted.emplace_back(
          convert_generator(value.isNone() ? at::Generator() : value.toGenerator()));
    } else if (value.isDevice()) {
      converted.emplace_back(c10::Device(c10::kCPU));
    } else {
      converted.push_back(map_tensors(value, convert_tensor));
    }
  }
  return converted;
}

// Returns a copy of a CPU tensor, as the host may change the tensor before a kernel reads it.
at::Tensor copy_on_host(const at::Tensor& tensor);

// Makes tensors of the CPU that have the memory of a device's tensors. Tensors that share a storage
// share it there, too. Only kernels on the device's threads may read or write them.
class DeviceViews {
 public:
  // Returns a view of a device's tensor. Returns a CPU tensor, or an undefined one, as it is.
  at::Tensor view_of(const at::Tensor& tensor);

  // Returns the memory of all views, for DeviceStream::enqueue().
  DeviceStream::Blocks blocks() const { return blocks_; }

 private:
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;  // device's, CPU's
  DeviceStream::Blocks blocks_;
};

}  // namespace trireme::internal
