#include "trireme/data/dataset_data.h"

#include <utility>

#include "trireme/base/status.h"
#include "trireme/data/dataset_steps.h"

// The definition lists the steps from the source on, and the tensors of all steps follow each other
// in one list: those of a source, for a map the constants of its graphs, and for a zip those of its
// other inputs. The receiver adds the steps one by one, each with the tensors that its definition
// asks for, so every step is checked before the next one relies on it.
namespace trireme::internal {

DatasetData data_of(const Dataset& dataset) {
  DatasetData data;
  write_steps(*Access<Dataset>::last(dataset), data.def, data.tensors);
  return data;
}

absl::StatusOr<Dataset> dataset_from(DatasetData data) {
  TRIREME_ASSIGN_OR_RETURN(DatasetStepPtr last, make_steps(data.def, std::move(data.tensors)));
  return Access<Dataset>::make(std::move(last));
}

}  // namespace trireme::internal
