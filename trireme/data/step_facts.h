#pragma once

#include "absl/status/status.h"
#include "trireme/data/dataset_step.h"

namespace trireme::internal {

// Checks the arguments of a step, which starts as a copy of its input's facts, and updates the
// facts: what elements are like, how many there are, and what they cost. Errors do not name the
// step.
absl::Status add_facts(DatasetStep& step);

}  // namespace trireme::internal
