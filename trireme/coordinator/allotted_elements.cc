#include "trireme/coordinator/allotted_elements.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/coordinator/worker_resource.h"

namespace trireme::internal {

void allot_elements(Closure& closure, int worker) {
  std::vector<AllottedElements> before = std::exchange(closure.allotted, {});
  for (size_t i = 0; i < closure.resources.size(); ++i) {
    WorkerResource& resource = *closure.resources[i];
    const uint64_t count = closure.current->draws[i] * closure.repeat;
    if (i >= before.size() || !resource.can_keep(before[i])) {
      closure.allotted.push_back(resource.allot(worker, count));
      continue;
    }
    // The function was captured again and draws another number of elements.
    AllottedElements kept = std::move(before[i]);
    if (kept.count() != count) {
      resource.put_back(kept);
      kept = resource.allot(kept.worker, count);
    }
    closure.allotted.push_back(std::move(kept));
  }
}

void use_elements(Closure& closure) {
  for (size_t i = 0; i < closure.allotted.size(); ++i) {
    closure.resources[i]->note_used(closure.allotted[i]);
  }
  closure.allotted.clear();
}

void return_elements(Closure& closure) {
  for (size_t i = 0; i < closure.allotted.size(); ++i) {
    closure.resources[i]->put_back(closure.allotted[i]);
  }
  closure.allotted.clear();
}

void settle_elements(Closure& closure, const absl::Status& result) {
  const bool ended = !result.ok() && error_code(result) == ErrorCode::kEndOfData;
  ended ? return_elements(closure) : use_elements(closure);
}

void return_elements_of_unsent(const std::vector<ClosurePtr>& closures) {
  for (const ClosurePtr& closure : closures) {
    if (!closure->may_have_pushed) return_elements(*closure);
  }
}

// The updates of a closure that was cancelled while it ran may have been applied, so its elements
// are not used again.
void Closure::release() {
  may_have_pushed ? use_elements(*this) : return_elements(*this);
  tensors.clear();
  resources.clear();
  capture_again = nullptr;
}

}  // namespace trireme::internal
