#pragma once

#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Gives batches of elements whose shapes may differ. Elements are filled up at their ends. An
// element that is larger than the sizes of the step is an error.
StreamPtr<Element> open_padded_batches(DatasetStepPtr step, StreamPtr<Element> input);

}  // namespace trireme::internal
