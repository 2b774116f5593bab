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

// One step of a dataset and those before it, checked. Immutable, so that datasets share them.
struct DatasetStep {
  std::shared_ptr<const DatasetStep> input;  // null for a source
  proto::DatasetStep def;
  int number = 0;  // of steps before it

  std::vector<at::Tensor> tensors;                 // of a source: its rows are the elements
  std::vector<std::shared_ptr<const Plan>> plans;  // of a map: one for each spec of its input

  // What elements may look like: one specification, or two where the last batch is smaller.
  std::vector<ElementSpec> specs;
  int64_t count = 0;  // of its elements
  // Elements are still rows of the source, and known by their numbers.
  bool rows = false;
  // How many elements of the source it takes to give the first, and each on average after it.
  double first_reads = 0, reads = 1;
};

using DatasetStepPtr = std::shared_ptr<const DatasetStep>;

// Puts a step on others; null for a source. The definition and the tensors that it names may come
// from anybody: all of it is checked, and that no step holds or passes over too much at once. An
// error names the step.
absl::StatusOr<DatasetStepPtr> add_step(DatasetStepPtr input, proto::DatasetStep def,
                                        std::vector<at::Tensor> tensors);
// How many tensors of the list a step takes.
int64_t tensors_of(const proto::DatasetStep& def);

// "range(1, 6).batch(2)"
std::string describe(const DatasetStep& step);

}  // namespace trireme::internal
