#include "trireme/coordinator/closure_requests.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/data/dataset_data.h"
#include "trireme/placement/cutter.h"
#include "trireme/runtime/tensor_lists.h"

namespace trireme::internal {

Message register_request(const ClosureFunction& function, const std::vector<uint32_t>& dropped) {
  RegisterFunctionRequest rest;
  rest.mutable_dropped()->Assign(dropped.begin(), dropped.end());
  Message message = function.registration;
  message.body += rest.SerializeAsString();  // Appended fields are merged into the message.
  return message;
}

absl::StatusOr<Message> create_request(const ResourceRequest& request,
                                       const ElementAccount& account) {
  std::optional<WorkerIterator> iterator = account.iterator(request.worker);
  if (!iterator) {
    return make_status(
        ErrorCode::kFailedPrecondition,
        "a closure draws from an iterator that was made by another coordinator and does not exist "
        "for this worker; make it with create_per_worker_dataset() of the same coordinator");
  }
  DatasetData data = data_of(iterator->dataset);
  CreateResourceRequest body;
  body.set_coordinator(request.coordinator);
  body.set_resource(iterator->edition);
  body.set_seed(iterator->seed);
  body.set_in_ranges(iterator->in_ranges);
  *body.mutable_dataset() = std::move(data.def);
  body.mutable_dropped()->Assign(request.dropped.begin(), request.dropped.end());
  return make_message(body, std::move(data.tensors));
}

RunRequest run_request(uint64_t coordinator, uint64_t watermark, BatchNumber number,
                       const std::vector<ClosurePtr>& closures) {
  RunClosuresRequest request;
  request.set_coordinator(coordinator);
  request.set_watermark(watermark);
  request.set_batch(number.batch);
  request.set_after(number.after);
  std::vector<at::Tensor> tensors;
  uint64_t answer_bytes = 0;
  for (const ClosurePtr& closure : closures) {
    ClosureRequest* added = request.add_closures();
    added->set_sequence(closure->sequence);
    added->set_function(closure->current->id);
    added->set_seed(closure->seed);
    added->set_step(closure->step);
    std::vector<at::Tensor> own = closure->tensors;
    own.insert(own.end(), closure->sums.begin(), closure->sums.end());
    added->set_tensors(append_defined(std::move(own), tensors, *added->mutable_undefined()));
    if (closure->runs_done > 0) {
      added->set_runs_done(closure->runs_done);
      added->set_sums(static_cast<uint32_t>(closure->sums.size()));
    }
    // The worker may run any of the variants, so the largest answer counts.
    uint64_t largest = closure->current->answer_bytes;
    if (!closure->resources.empty()) {
      for (const AllottedElements& elements : closure->allotted) {
        ClosureRequest::Draw* draw = added->add_draws();
        draw->set_resource(elements.edition);
        for (const NumberSpan& span : elements.numbers) {
          NumberRange* range = draw->add_numbers();
          range->set_first(span.first);
          range->set_count(span.count);
        }
      }
      for (const auto& variant : closure->current->variants.get()) {
        added->add_variants(variant->id);
        largest = std::max(largest, variant->answer_bytes);
      }
    }
    if (closure->may_have_pushed) added->set_may_have_pushed(true);
    if (closure->repeat > 1) added->set_repeat(closure->repeat);
    if (closure->sum_results) added->set_sum_results(true);
    answer_bytes += std::min(largest, kSmallAnswer + 1);  // Capped, so that sums cannot overflow.
  }
  return {make_message(request, std::move(tensors)), answer_bytes > kSmallAnswer};
}

}  // namespace trireme::internal
