#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// A closure as a worker receives it.
struct ReceivedClosure {
  uint64_t sequence = 0;  // the first of `repeat`
  uint32_t function = 0;  // id of the HostedFunction
  uint64_t seed = 0;
  uint64_t step = 0;
  std::vector<at::Tensor> tensors;
  std::vector<uint64_t> resources;
  std::vector<uint32_t> variants;  // ids of functions for elements of other shapes
  uint32_t repeat = 1;
};

// A worker's answer to a ReceivedClosure.
struct RunResult {
  ClosureResult result = make_status(ErrorCode::kInternal, "it has not run");
  // The elements that the closure drew, one list for each draw, if neither its function nor a
  // variant takes them. The worker keeps them until the closure comes again. The result means
  // nothing then.
  std::vector<std::vector<Element>> drawn = {};
  // Time for which the closure kept others from running: drawing and its operators, or all of its
  // turn.
  Duration busy = {};
};

}  // namespace trireme::internal
