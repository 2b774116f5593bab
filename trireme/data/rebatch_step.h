#pragma once

#include "absl/status/status.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Checks a step that splits batches into parts, as add_facts() does for all steps. Does not check
// how many bytes a part has.
absl::Status add_rebatch(DatasetStep& step);

// Returns a stream of the parts. `input` is the stream of the step before `step`. A part may
// continue into the next batch. The last part may be smaller than its size. Parts of size 0 are
// empty batches.
StreamPtr<Element> make_rebatched(DatasetStepPtr step, StreamPtr<Element> input);

}  // namespace trireme::internal
