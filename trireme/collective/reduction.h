#pragma once

namespace trireme {

// Operation that combines the tensors of all ranks.
enum class Reduction {
  kSum = 0,   // the sum
  kMean = 1,  // the arithmetic mean; of floating-point and complex values only
  kMin = 2,   // the smallest value
  kMax = 3,   // the largest value
};

}  // namespace trireme
