#include "trireme/testing/accelerator/device_call.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "trireme/testing/accelerator/call_arguments.h"
#include "trireme/testing/accelerator/current_device.h"
#include "trireme/testing/accelerator/device_generator.h"
#include "trireme/testing/accelerator/output_shapes.h"

// A call has two halves. The host finds the shapes of the results, allocates these, and queues a
// kernel. The kernel runs the operator on tensors of the CPU that have the memory of the device's
// tensors, and copies what it returns into the results. If the shapes depend on values, or if the
// operator returns a number, the host waits for the kernel instead and allocates afterwards.
namespace trireme::internal {
namespace {

using torch::jit::Stack;

c10::Device gpu(int device) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)};
}

// Returns true if the operator accepts this tensor of the CPU beside tensors of the device: a
// number, or indices. GPUs accept the same.
bool may_be_on_host(const c10::FunctionSchema& schema, const at::Tensor& tensor) {
  const std::string& name = schema.name();
  return tensor.dim() == 0 || name == "aten::index" || name == "aten::_index_put_impl_";
}

// Returns the device of the tensors, or if there are none, the device that the call names.
int device_of_call(const c10::FunctionSchema& schema, const Stack& arguments) {
  int device = -1;
  for (const c10::IValue& value : arguments) {
    if (value.isDevice() && device < 0) device = value.toDevice().index();
  }
  bool found = false;
  for (const c10::IValue& value : arguments) {
    map_tensors(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || (tensor.is_cpu() && may_be_on_host(schema, tensor))) return tensor;
      if (!std::exchange(found, true)) device = tensor.device().index();
      TORCH_CHECK(tensor.device() == gpu(device), schema.name(), ": an argument is on ",
                  tensor.device(), ", but others are on ", gpu(device), "; copy it there first");
      return tensor;
    });
  }
  return device < 0 ? current_device() : device;
}

bool is_tensor(const c10::Argument& result) {
  return result.type()->kind() == c10::TypeKind::TensorType;
}

bool is_tensor_list(const c10::Argument& result) {
  return result.type()->isSubtypeOf(*c10::ListType::ofTensors());
}

// Returns true if the host must wait for the operator's results to know them or their shapes.
bool host_needs_values(const c10::OperatorHandle& op) {
  bool has_new_tensors = false;
  for (const c10::Argument& result : op.schema().returns()) {
    if (!is_tensor(result) && !is_tensor_list(result)) return true;
    if (result.alias_info() == nullptr) has_new_tensors = true;
  }
  return has_new_tensors && op.hasTag(at::Tag::dynamic_output_shape);
}

// Returns the argument that the operator returns as this result, or null if the result is new.
const c10::IValue* returned_argument(const c10::FunctionSchema& schema, const Stack& arguments,
                                     const c10::Argument& result) {
  if (result.alias_info() == nullptr) return nullptr;
  TORCH_CHECK(result.alias_info()->isWrite(), "gpu: ", schema.name(),
              " returns a view; device_operators.cc must implement it");
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && *alias == *result.alias_info()) return &arguments[i];
  }
  TORCH_CHECK(false, "gpu: ", schema.name(), " returns none of its arguments");
}

// Returns true if the host needs the shapes of the results: to allocate them, or to resize an empty
// `out` argument. Others must have their shape already, because kernels cannot allocate.
bool host_needs_shapes(const c10::FunctionSchema& schema, const Stack& arguments) {
  for (const c10::Argument& result : schema.returns()) {
    const c10::IValue* argument = returned_argument(schema, arguments, result);
    if (argument == nullptr) return true;
    if (argument->isTensor() && argument->toTensor().numel() == 0) return true;
  }
  return false;
}

Stack arguments_for_kernel(const c10::FunctionSchema& schema, const Stack& arguments, int device,
                           DeviceViews& views) {
  return convert_arguments(
      schema, arguments,
      [&](const at::Tensor& tensor) {
        const bool on_host = tensor.defined() && tensor.is_cpu();
        return on_host ? copy_on_host(tensor) : views.view_of(tensor);
      },
      [&](const at::Generator& given) {
        at::Generator generator = given.defined() ? given : default_device_generator(device);
        TORCH_CHECK(generator.device() == gpu(device), schema.name(), ": the generator is on ",
                    generator.device(), ", but the tensors are on ", gpu(device));
        std::lock_guard<std::mutex> lock(generator.mutex());
        return generator.get<DeviceGenerator>()->for_next_kernel();
      });
}

at::Tensor allocate(const OutputShape& shape, int device) {
  if (!shape.defined) return {};
  return at::empty_strided(shape.sizes, shape.strides,
                           at::TensorOptions(gpu(device)).dtype(shape.dtype));
}

// Returns the results of the call, new tensors or arguments, and resizes empty `out` arguments.
Stack allocate_results(const c10::FunctionSchema& schema, const Stack& arguments, int device,
                       const OutputShapes* shapes) {
  Stack results;
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const c10::Argument& result = schema.returns()[i];
    if (const c10::IValue* argument = returned_argument(schema, arguments, result)) {
      const bool is_empty = argument->isTensor() && argument->toTensor().numel() == 0;
      if (is_empty) argument->toTensor().resize_((*shapes)[i].at(0).sizes);
      results.push_back(*argument);
      continue;
    }
    c10::List<at::Tensor> tensors;
    for (const OutputShape& shape : (*shapes)[i]) {
      tensors.push_back(allocate(shape, device));
    }
    if (is_tensor_list(result)) {
      results.emplace_back(tensors);
    } else {
      results.emplace_back(at::Tensor(tensors.get(0)));
    }
  }
  return results;
}

// Runs the operator on the calling thread and replaces the arguments by what it returns.
void run_on_cpu(const c10::OperatorHandle& op, bool grad_mode, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::AutoGradMode as_caller(grad_mode);  // Some kernels keep more if it is on.
  op.callBoxed(stack);
}

// Copies what a kernel has returned into the memory of the result.
void copy_result(const at::Tensor& from, const at::Tensor& to) {
  if (!to.defined()) return;
  TORCH_CHECK(from.defined() && from.sizes() == to.sizes(),
              "gpu: the kernel returned another shape than expected");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  to.copy_(from);
}

void call_later(const c10::OperatorHandle& op, int device, const Stack& results,
                const Stack& kernel_arguments, DeviceViews& views) {
  // For each result the views to write, which are none if the kernel writes an argument.
  std::vector<std::vector<at::Tensor>> targets(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (op.schema().returns()[i].alias_info() != nullptr) continue;
    map_tensors(results[i], [&](const at::Tensor& tensor) {
      targets[i].push_back(views.view_of(tensor));
      return tensor;
    });
  }
  current_stream(device).enqueue(
      [op, targets, stack = kernel_arguments, grad_mode = c10::GradMode::is_enabled()]() mutable {
        run_on_cpu(op, grad_mode, &stack);
        for (size_t i = 0; i < targets.size(); ++i) {
          auto target = targets[i].begin();
          if (target == targets[i].end()) continue;
          map_tensors(stack[i], [&](const at::Tensor& tensor) {
            copy_result(tensor, *target++);
            return tensor;
          });
        }
      },
      views.blocks());
}

Stack call_now(const c10::OperatorHandle& op, int device, const Stack& arguments,
               const Stack& kernel_arguments, const DeviceViews& views) {
  auto returned = std::make_shared<Stack>(kernel_arguments);
  DeviceStream& stream = current_stream(device);
  stream.enqueue(
      [op, returned, grad_mode = c10::GradMode::is_enabled()] {
        run_on_cpu(op, grad_mode, returned.get());
      },
      views.blocks());
  stream.synchronize();
  Stack results;
  for (size_t i = 0; i < returned->size(); ++i) {
    const c10::Argument& result = op.schema().returns()[i];
    if (const c10::IValue* argument = returned_argument(op.schema(), arguments, result)) {
      results.push_back(*argument);
      continue;
    }
    results.push_back(map_tensors((*returned)[i], [&](const at::Tensor& tensor) {
      const at::Tensor target = allocate(OutputShape(tensor), device);
      if (target.defined()) enqueue_copy(tensor, target);
      return target;
    }));
  }
  return results;
}

// Answers aten::equal for a tensor and itself without waiting for its values.
bool compares_tensor_with_itself(const c10::FunctionSchema& schema, const Stack& arguments) {
  return schema.name() == "aten::equal" && arguments[0].toTensor().is_same(arguments[1].toTensor());
}

}  // namespace

void call_on_device(const c10::OperatorHandle& op, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::FunctionSchema& schema = op.schema();
  const Stack arguments = torch::jit::pop(*stack, schema.arguments().size());
  if (compares_tensor_with_itself(schema, arguments)) {
    stack->emplace_back(true);
    return;
  }
  const int device = device_of_call(schema, arguments);
  const c10::DeviceGuard guard(gpu(device));
  bool waits = host_needs_values(op);
  std::shared_ptr<const OutputShapes> shapes;
  if (!waits && host_needs_shapes(schema, arguments)) {
    shapes = output_shapes(op, arguments);
    waits = shapes == nullptr;
  }
  Stack results;
  if (!waits) results = allocate_results(schema, arguments, device, shapes.get());
  DeviceViews views;
  const Stack kernel_arguments = arguments_for_kernel(schema, arguments, device, views);
  if (waits) {
    results = call_now(op, device, arguments, kernel_arguments, views);
  } else {
    call_later(op, device, results, kernel_arguments, views);
  }
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

void enqueue_copy(const at::Tensor& source, const at::Tensor& target) {
  DeviceViews views;
  const at::Tensor from = views.view_of(source);
  const at::Tensor to = views.view_of(target);
  const c10::Device device = source.is_cpu() ? target.device() : source.device();
  current_stream(device.index())
      .enqueue(
          [from, to] {
            const at::AutoDispatchBelowADInplaceOrView below_autograd;
            to.copy_(from);
          },
          views.blocks());
}

}  // namespace trireme::internal
