#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/tensor/scattered_tensor.h"

namespace trireme {

// One change of one variable: all of it, or the rows with these ids.
struct Update {
  enum class Kind { kAdd, kAssign, kGradient };

  Kind kind = Kind::kAdd;
  at::Tensor ids;  // undefined: the whole variable
  at::Tensor values;
  ScatteredTensor scattered;  // the bytes of the values, if these are on the meta device
};

}  // namespace trireme
