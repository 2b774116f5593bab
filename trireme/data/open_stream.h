#pragma once

#include <cstdint>
#include <memory>

#include "trireme/data/dataset_step.h"
#include "trireme/data/input_metrics.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Opens a stream at the first element of a step. Streams with the same seed give the same elements.
// Measures the time of the steps if `metrics` is not null.
StreamPtr<Element> open_stream(const DatasetStepPtr& step, uint64_t seed,
                               std::shared_ptr<InputMetrics> metrics = nullptr);

}  // namespace trireme::internal
