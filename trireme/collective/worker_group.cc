#include "trireme/collective/worker_group.h"

#include <utility>

namespace trireme::internal {
namespace {

// Returns a copy that a collective call may write to.
at::Tensor contiguous_copy(const at::Tensor& value) {
  return value.detach().clone(at::MemoryFormat::Contiguous);
}

}  // namespace

CommunicatorWorkers::CommunicatorWorkers(std::shared_ptr<Communicator> communicator,
                                         std::optional<c10::ScalarType> wire_dtype)
    : communicator_(std::move(communicator)),
      steps_(communicator_),
      options_{.communicator = steps_.number(), .wire_dtype = wire_dtype} {}

at::Tensor CommunicatorWorkers::sum(const at::Tensor& value, const std::string& tag) {
  if (value.is_sparse()) return sum_sparse_over_ranks(*communicator_, value, tag);
  const at::Tensor result = contiguous_copy(value);
  communicator_->all_reduce(result, Reduction::kSum, {.tag = tag}).wait();
  return result;
}

at::Tensor CommunicatorWorkers::first(const at::Tensor& value, const std::string& tag) {
  const at::Tensor result = contiguous_copy(value);
  communicator_->broadcast(result, 0, {.tag = tag}).wait();
  return result;
}

at::Tensor CommunicatorWorkers::concatenate(const at::Tensor& value, const std::string& tag) {
  return concatenate_over_ranks(*communicator_, value, tag);
}

std::shared_ptr<const GraphData> CommunicatorWorkers::connect(const Plan& plan) {
  return reduce_over_ranks(plan, options_);
}

void CommunicatorWorkers::fail(const std::string& message) {
  communicator_->fail(message);
}

}  // namespace trireme::internal
