#include "trireme/coordinator/per_worker_values.h"

#include "trireme/coordinator/worker_resource.h"

namespace trireme {

void PerWorkerDataset::restart() const {
  internal::Access<PerWorkerDataset>::resource(*this)->restart();
}

}  // namespace trireme
