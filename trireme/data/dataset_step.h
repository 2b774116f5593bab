#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "trireme/data/dataset.pb.h"
#include "trireme/data/element.h"
#include "trireme/data/record_format.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// Stand for numbers of elements: they never end, or only reading shows how many there are.
inline constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kUnknownCount = -1;

// Form in which streams pass an element on: its row number in a source in memory, its row in a
// block of a file, or its tensors.
enum class Items { kRows, kBlockRows, kElements };

// A checked step of a dataset, with the steps before it. Immutable, so that datasets can share it.
struct DatasetStep {
  std::shared_ptr<const DatasetStep> input;  // null for a source
  // Inputs after the first one: of zip and concatenate.
  std::vector<std::shared_ptr<const DatasetStep>> others;
  proto::DatasetStep def;
  int number = 0;  // position in the dataset, counted from 0

  std::vector<at::Tensor> tensors;  // from_tensors only: their rows are the elements
  // map and filter only: a plan for each spec of the input.
  std::vector<std::shared_ptr<const Plan>> plans;

  // Specifications that elements may have: one, or two if the last batch is smaller. A size of -1
  // stands for any size.
  std::vector<ElementSpec> specs;
  int64_t count = 0;  // number of elements, or kEndless or kUnknownCount
  Items items = Items::kElements;
  bool is_random = false;                      // true if elements differ between repetitions
  bool varies = false;                         // true if the number of elements does so too
  std::shared_ptr<const RecordFormat> format;  // files of records only
  // Elements of the source that are read in addition before the first element, and the average
  // number that is read for each element.
  double first_reads = 0, reads = 1;
};

using DatasetStepPtr = std::shared_ptr<const DatasetStep>;

}  // namespace trireme::internal
