#pragma once

#include "trireme/data/batch_items.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Gives batches of elements, which all have the same shapes.
StreamPtr<Element> open_batches(BatchSize batch, StreamPtr<Element> input);

}  // namespace trireme::internal
