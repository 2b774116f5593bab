#pragma once

#include <cstdint>
#include <memory>

#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Opens a stream at the first element of a step. Streams with the same seed give the same elements.
std::unique_ptr<Stream<Element>> open_stream(const DatasetStepPtr& step, uint64_t seed);

}  // namespace trireme::internal
