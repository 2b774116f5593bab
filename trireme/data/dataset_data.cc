#include "trireme/data/dataset_data.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/dataset_step.h"
#include "trireme/graph/graph_file.h"

// The definition lists the steps from the source on, and the tensors of all steps follow each other
// in one list: those of a source, and for a map the constants of its graphs. The receiver adds the
// steps one by one, each with the tensors that its definition asks for, so every step is checked
// before the next one relies on it.
namespace trireme::internal {
namespace {

constexpr uint32_t kFormat = 1;

absl::Status invalid_dataset(std::string message) {
  return make_status(ErrorCode::kInvalidArgument, std::move(message), {"", "dataset"});
}

}  // namespace

DatasetData data_of(const Dataset& dataset) {
  std::vector<const DatasetStep*> steps;
  for (const DatasetStep* step = Access<Dataset>::last(dataset).get(); step;
       step = step->input.get()) {
    steps.push_back(step);
  }
  std::reverse(steps.begin(), steps.end());
  DatasetData data;
  data.def.set_format(kFormat);
  for (const DatasetStep* step : steps) {
    *data.def.add_steps() = step->def;
    data.tensors.insert(data.tensors.end(), step->tensors.begin(), step->tensors.end());
    for (const auto& plan : step->plans) {
      for (at::Tensor& row : constant_rows(*plan->graph)) data.tensors.push_back(std::move(row));
    }
  }
  return data;
}

absl::StatusOr<Dataset> dataset_from(DatasetData data) {
  if (data.def.format() != kFormat) {
    return make_status(
        ErrorCode::kVersionMismatch,
        absl::StrCat("it has format ", data.def.format(), "; this version reads format ", kFormat),
        {"", "dataset"});
  }
  if (data.def.steps_size() == 0) return invalid_dataset("it has no steps");
  DatasetStepPtr last;
  auto next = data.tensors.begin();
  for (proto::DatasetStep& def : *data.def.mutable_steps()) {
    // A step may claim more tensors than there are; add_step() rejects it then.
    const auto end = next + std::min<int64_t>(tensor_count(def), data.tensors.end() - next);
    TRIREME_ASSIGN_OR_RETURN(
        last, add_step(std::move(last), std::move(def), std::vector<at::Tensor>(next, end)));
    next = end;
  }
  if (next != data.tensors.end()) {
    return invalid_dataset(
        absl::StrCat("it has ", data.tensors.end() - next, " more tensors than its steps use"));
  }
  return Access<Dataset>::make(std::move(last));
}

}  // namespace trireme::internal
