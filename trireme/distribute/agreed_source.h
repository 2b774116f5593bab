#pragma once

#include "trireme/data/iterator.h"
#include "trireme/function/worker_values.h"

namespace trireme::internal {

// Returns an iterator over the same elements for workers that train together, each with data of its
// own. Whenever they draw an element, all workers draw one, and agree whether there is more data. A
// worker whose data has ended draws batches without rows until the data of all workers has ended.
// The group must outlive the iterator.
Iterator agreed_iterator(const Iterator& iterator, WorkerGroup& workers);

}  // namespace trireme::internal
