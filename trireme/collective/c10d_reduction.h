#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "trireme/collective/reduction.h"

namespace trireme::internal {

// Returns the operation of c10d that makes a reduction. A mean is made of the sum.
inline c10d::ReduceOp c10d_reduction(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMin:
      return c10d::ReduceOp::MIN;
    case Reduction::kMax:
      return c10d::ReduceOp::MAX;
    case Reduction::kSum:
    case Reduction::kMean:
      break;
  }
  return c10d::ReduceOp::SUM;
}

}  // namespace trireme::internal
