#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure.h"
#include "trireme/data/used_numbers.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// A closure that a worker has received.
struct ReceivedClosure {
  uint64_t sequence = 0;  // First of `repeat` sequence numbers.
  uint32_t function = 0;  // Id of the HostedFunction.
  uint64_t seed = 0;
  uint64_t step = 0;
  std::vector<at::Tensor> tensors;               // Inputs that are not drawn, then variables.
  std::vector<uint64_t> resources;               // Id of the iterator of each draw.
  std::vector<std::vector<NumberSpan>> numbers;  // Elements of each draw, for the repetitions left.
  std::vector<uint32_t> variants;                // Ids of functions for elements of other shapes.
  uint32_t repeat = 1;
  bool may_have_pushed = false;  // True if an earlier run of it may have pushed updates.
  bool sum_results = false;      // True to add up the results of the repetitions.
  uint32_t runs_done = 0;        // Number of repetitions that an earlier attempt has completed.
  std::vector<at::Tensor> sums = {};  // Sums of the results of these, if they are added up.
};

// A batch that a worker has received.
struct ReceivedBatch {
  std::vector<ReceivedClosure> closures;
  uint64_t watermark = 0;  // Sequence below which all closures are decided.
  uint64_t number = 0;     // Number of the batch.
  uint64_t after = 0;      // Number of the batch that was sent before it; 0 if it was answered.
};

// The end of the data that a closure found.
struct DataEnd {
  size_t draw = 0;         // Index of the draw.
  uint64_t number = 0;     // Number of the element that does not exist.
  bool is_beyond = false;  // True if the whole range of the element does not exist.
};

// A worker's answer to a ReceivedClosure.
struct RunResult {
  ClosureResult result = make_status(ErrorCode::kInternal, "the closure has not run");
  // The elements that the closure drew, one list for each draw, if neither its function nor a
  // variant takes them. `result` has no meaning then.
  std::vector<std::vector<Element>> drawn = {};
  // True if the closure was cancelled before it sent a push, and its elements were put back.
  bool nothing_pushed = false;
  // Set if `result` is that there are no more elements.
  std::optional<DataEnd> end = std::nullopt;
  // Number of repetitions that are completed, those of earlier attempts included, and the sums of
  // their results, if the closure adds them up. Set if `drawn` or `end` is.
  uint32_t runs_done = 0;
  std::vector<at::Tensor> sums = {};
  // Time for which the closure kept others from running: the time for drawing and operators, or,
  // for a closure that takes turns, the time of its turn.
  Duration busy = {};
};

}  // namespace trireme::internal
