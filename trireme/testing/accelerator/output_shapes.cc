#include "trireme/testing/accelerator/output_shapes.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/full.h>

#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

#include "trireme/base/mutex.h"
#include "trireme/testing/accelerator/call_arguments.h"

// LibTorch's meta kernels would tell the shapes without computing anything. But many of them, such
// as those of convolutions and normalizations, exist in Python only. The operator's kernel for the
// CPU always exists, so it runs once on tensors that have the same shapes. They contain ones, or
// zeros if they are integers and may be indices.
namespace trireme::internal {
namespace {

constexpr size_t kMostCachedShapes = 20'000;

struct ShapeCache {
  Mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const OutputShapes>> shapes
      ABSL_GUARDED_BY(mutex);
};

ShapeCache& shape_cache() {
  static ShapeCache* const cache = new ShapeCache;
  return *cache;
}

// Returns a text that is equal for calls with equal shapes and equal arguments otherwise.
std::string describe_call(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  std::ostringstream text;
  text << op.schema().name() << '.' << op.schema().overload_name();
  for (const c10::IValue& value : arguments) {
    text << '|';
    if (value.isTensor() || value.isTensorList() || value.isOptionalTensorList()) {
      map_tensors(value, [&](const at::Tensor& tensor) {
        text << tensor.defined();
        if (tensor.defined()) {
          text << tensor.scalar_type() << tensor.sizes() << tensor.strides() << tensor.device();
        }
        return tensor;
      });
    } else if (!value.isGenerator()) {
      text << value;
    }
  }
  return std::move(text).str();
}

at::Tensor filled_like(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.is_cpu()) return copy_on_host(tensor);
  const bool is_number = tensor.is_floating_point() || tensor.is_complex();
  const auto elements = static_cast<int64_t>(
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), /*itemsize=*/1));
  return at::full({elements}, is_number ? 1 : 0, tensor.options().device(c10::kCPU))
      .as_strided(tensor.sizes(), tensor.strides());
}

std::shared_ptr<const OutputShapes> find_shapes(const c10::OperatorHandle& op,
                                                const torch::jit::Stack& arguments) {
  torch::jit::Stack stack =
      convert_arguments(op.schema(), arguments, filled_like,
                        [](const at::Generator&) { return at::detail::createCPUGenerator(); });
  try {
    op.callBoxed(&stack);
  } catch (const std::exception&) {
    return nullptr;  // Ones may be wrong values, or the call is. With the real values it will tell.
  }
  auto shapes = std::make_shared<OutputShapes>();
  for (const c10::IValue& value : stack) {
    auto& of_value = shapes->emplace_back();
    map_tensors(value, [&](const at::Tensor& tensor) {
      of_value.emplace_back(tensor);
      return tensor;
    });
  }
  return shapes;
}

}  // namespace

OutputShape::OutputShape(const at::Tensor& tensor) : defined(tensor.defined()) {
  if (!defined) return;
  dtype = tensor.scalar_type();
  sizes = tensor.sizes().vec();
  // The device's own tensor must be one that can be written, so not an expanded one.
  const bool is_dense = tensor.is_non_overlapping_and_dense();
  strides =
      is_dense ? tensor.strides().vec() : c10::TensorType::contiguousStridesOf(tensor.sizes());
}

std::shared_ptr<const OutputShapes> output_shapes(const c10::OperatorHandle& op,
                                                  const torch::jit::Stack& arguments) {
  const std::string call = describe_call(op, arguments);
  ShapeCache& cache = shape_cache();
  {
    MutexLock lock(cache.mutex);
    const auto known = cache.shapes.find(call);
    if (known != cache.shapes.end()) return known->second;
  }
  auto shapes = find_shapes(op, arguments);
  MutexLock lock(cache.mutex);
  if (cache.shapes.size() >= kMostCachedShapes) cache.shapes.clear();
  cache.shapes[call] = shapes;
  return shapes;
}

}  // namespace trireme::internal
