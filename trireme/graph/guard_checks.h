#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/ops/aminmax.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/graph/trusted_contents.h"
#include "trireme/tensor/format_shape.h"

// Building blocks of guards. Each function throws Error if its condition does not hold. A function
// that takes the argument's name puts it into the message.
namespace trireme::internal {

using Arguments = c10::ArrayRef<c10::IValue>;
using Sizes = std::vector<int64_t>;

[[noreturn]] inline void refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, why);
}

// Throws Error with the message `why` unless `holds`.
inline void require(bool holds, const char* why) {
  if (!holds) refuse(why);
}

// Returns the argument as a tensor, which must be defined and not sparse.
inline const at::Tensor& dense(const c10::IValue& argument, const char* name) {
  const at::Tensor& tensor = argument.toTensor();
  if (!tensor.defined() || tensor.layout() != at::kStrided) {
    refuse(absl::StrCat("'", name, "' must be a dense tensor"));
  }
  return tensor;
}

// Returns true if an optional argument is a defined tensor.
inline bool is_given(const c10::IValue& argument) {
  return argument.isTensor() && argument.toTensor().defined();
}

// Returns a * b; throws on overflow. The product of an empty or expanded tensor's sizes can
// overflow, since no memory backs it.
inline int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  require(!__builtin_mul_overflow(a, b, &result), "a size is out of range");
  return result;
}

inline void require_sizes(const at::Tensor& tensor, const Sizes& sizes, const char* name) {
  if (tensor.sizes() == at::IntArrayRef(sizes)) return;
  refuse(absl::StrCat("'", name, "' has the shape ", format_shape(tensor.sizes()),
                      ", but must have ", format_shape(sizes)));
}

inline void require_numel(const at::Tensor& tensor, int64_t numel, const char* name) {
  if (tensor.numel() == numel) return;
  refuse(absl::StrCat("'", name, "' has ", tensor.numel(), " elements, but must have ", numel));
}

// Requires integers in [low, high). The range is not checked if contents are trusted.
inline void require_range(const at::Tensor& indices, int64_t low, int64_t high, const char* name) {
  if (!at::isIntegralType(indices.scalar_type(), /*includeBool=*/false)) {
    refuse(absl::StrCat("'", name, "' must hold integers"));
  }
  if (indices.numel() == 0 || has_trusted_contents(indices)) return;
  const auto [least, most] = at::aminmax(indices);
  if (least.item<int64_t>() >= low && most.item<int64_t>() < high) return;
  refuse(absl::StrCat("'", name, "' holds ", least.item<int64_t>(), " to ", most.item<int64_t>(),
                      "; all must be at least ", low, " and less than ", high));
}

}  // namespace trireme::internal
