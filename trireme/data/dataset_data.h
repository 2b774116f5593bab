#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset.pb.h"

// A dataset as it travels to where its iterators are.
namespace trireme::internal {

struct DatasetData {
  proto::DatasetDef def;
  std::vector<at::Tensor> tensors;
};

DatasetData data_of(const Dataset& dataset);
// From data that anybody may have sent. An error names the step.
absl::StatusOr<Dataset> dataset_from(DatasetData data);

}  // namespace trireme::internal
