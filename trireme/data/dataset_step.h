#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/data/dataset.pb.h"
#include "trireme/data/element.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

inline constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

// A checked step of a dataset, with the steps before it. Immutable, so that datasets can share it.
struct DatasetStep {
  std::shared_ptr<const DatasetStep> input;  // null for a source
  proto::DatasetStep def;
  int number = 0;  // position in the dataset, counted from 0

  std::vector<at::Tensor> tensors;                 // from_tensors only: their rows are the elements
  std::vector<std::shared_ptr<const Plan>> plans;  // map only: a plan for each spec of the input

  // Specifications that elements may have: one, or two if the last batch is smaller.
  std::vector<ElementSpec> specs;
  int64_t count = 0;  // number of elements; kEndless if they never end
  // True if elements are rows of the source, which can be passed on as row numbers.
  bool yields_rows = false;
  // Elements of the source that are read in addition before the first element, and the average
  // number that is read for each element.
  double first_reads = 0, reads = 1;
};

using DatasetStepPtr = std::shared_ptr<const DatasetStep>;

// Adds a step to `input`, which is null for a source. The definition and its tensors may come from
// a peer, so everything is checked, including that no step holds or skips too much at once. Errors
// name the step.
absl::StatusOr<DatasetStepPtr> add_step(DatasetStepPtr input, proto::DatasetStep def,
                                        std::vector<at::Tensor> tensors);
// Returns the number of tensors that a step takes from the list that comes with the definition.
int64_t tensor_count(const proto::DatasetStep& def);

// Returns an error unless a stream over the step can skip its first elements in a reasonable time.
// The number of elements may come from a peer.
absl::Status check_skip(const DatasetStep& step, uint64_t elements);

// Returns the steps in readable form, as "range(1, 6).batch(2)".
std::string describe_steps(const DatasetStep& step);

}  // namespace trireme::internal
