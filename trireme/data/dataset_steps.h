#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/data/dataset.pb.h"
#include "trireme/data/dataset_step.h"

namespace trireme::internal {

// Checks a definition and its tensors, all of which must be used, and returns the last step. Both
// may come from a peer.
absl::StatusOr<DatasetStepPtr> make_steps(const proto::DatasetDef& def,
                                          std::vector<at::Tensor> tensors);
// Adds a step to `input`, which is null for a source. The definition and its tensors may come from
// a peer, so everything is checked, including that no step holds or skips too much at once. Errors
// name the step.
absl::StatusOr<DatasetStepPtr> add_step(DatasetStepPtr input, proto::DatasetStep def,
                                        std::vector<at::Tensor> tensors);
// Adds the definition of the steps to `def`, and their tensors to `tensors`.
void write_steps(const DatasetStep& last, proto::DatasetDef& def, std::vector<at::Tensor>& tensors);
// Returns the number of tensors that a step takes from the list that comes with the definition.
int64_t tensor_count(const proto::DatasetStep& def);
int64_t tensor_count(const proto::DatasetDef& def);
// Returns the definitions inside of a step: those of the datasets that it joins with the one before
// it.
std::vector<proto::DatasetDef*> definitions_in(proto::DatasetStep& step);

// Returns how many items streams draw one by one to skip the first elements of a step. Files whose
// records are only counted draw none.
double skip_reads(const DatasetStep& step, double elements);
// Returns an error unless a stream over the step can skip its first elements in a reasonable time.
// The number of elements may come from a peer.
absl::Status check_skip(const DatasetStep& step, uint64_t elements);

// Returns the name of the method of Dataset that adds the step.
const char* kind_name(const DatasetStep& step);
// Returns the steps in readable form, as "range(1, 6).batch(2)".
std::string describe_steps(const DatasetStep& step);

}  // namespace trireme::internal
